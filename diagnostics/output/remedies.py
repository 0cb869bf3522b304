"""What to do about a finding, as data. How it reads, and how a command is quoted, is `diagnostics.output.wording`'s."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


# A command is its words; nothing here is quoted.
Words = tuple[str, ...]

SHOWN, UNTRIED, FAILS = "shown", "untried", "fails"
STANDINGS = (SHOWN, UNTRIED, FAILS)


@dataclass(frozen=True)
class Install:
    """Packages to install.

    Attributes:
        requirements: As an installer takes them.
        by: The words before them.
        options: Such as --force-reinstall, which make it more than an installation.
        note: Where, or how much of it: a few words behind the command.
        framework: In whose words it is said, where it is an edit of the catalogue.
    """

    requirements: Words
    by: Words = ("pip", "install")
    options: Words = ()
    note: str = ""
    framework: str = ""

    @property
    def words(self) -> Words:
        """The command."""
        return (*self.by, *self.options, *self.requirements)


@dataclass(frozen=True)
class Uninstall:
    """Packages to remove."""

    names: Words
    by: Words = ("pip", "uninstall")

    @property
    def words(self) -> Words:
        """The command."""
        return (*self.by, *self.names)


@dataclass(frozen=True)
class Unset:
    """Environment variables to unset."""

    names: Words

    @property
    def words(self) -> Words:
        """The command."""
        return ("unset", *self.names)


@dataclass(frozen=True)
class SetVariables:
    """Environment variables to set, as (name, value)."""

    values: tuple[tuple[str, str], ...]

    @property
    def words(self) -> Words:
        """The command."""
        return ("export", *(f"{name}={value}" for name, value in self.values))


@dataclass(frozen=True)
class SetOption:
    """A change of settings in a framework's own words, as the catalogue has it.

    Attributes:
        framework: Its name in the catalogue; empty where the words are those of the user's own config.
        edit: What to set.
        versions: The releases that have these words, where others have others and which one it is is not known.
    """

    framework: str
    edit: str
    versions: str = ""


@dataclass(frozen=True)
class Advice:
    """What can't be said as a command or a setting; of a framework, what its users had better not do."""

    text: str
    framework: str = ""


@dataclass(frozen=True)
class Explain:
    """Reading on: what a code means."""

    code: str

    @property
    def words(self) -> Words:
        """The command."""
        return ("python", "-m", "diagnostics", "explain", self.code)


@dataclass(frozen=True)
class Run:
    """Any other command, to look or to change; it is printed, never run.

    Attributes:
        words: The command.
        piped: Commands that its output goes through.
        into: The file that takes its output.
        then: What follows if it went well.
        note: A few words behind it.
    """

    words: Words
    piped: tuple[Words, ...] = ()
    into: str = ""
    then: Run | None = None
    note: str = ""


# What an entry of the catalogue can ask for, in a framework's words.
Edit = Install | SetOption | Advice
Action = Edit | Uninstall | Unset | SetVariables | Explain | Run


@dataclass(frozen=True)
class Offer:
    """A mitigation of a known issue, and how it stands in the case at hand.

    Attributes:
        mitigation: Its name in the entry.
        standing: One of STANDINGS: `shown`: a run showed that it helps against the triggers of this case; `untried`:
            no run says so of these triggers; `fails`: a run showed that it does not help.
        evidence: How anything is known of it: declared, static or executed.
        edits: What to change, in the words of the frameworks at hand; empty where the entry has none for them.
        triggers: Those of the case at hand; empty where it shows none.
        helps: Triggers against which a run showed it to help.
        fails: Triggers against which a run showed that it does not.
        untried: Triggers that it may be here, against which it was not run although it was against others.
        run: Of what does not help, the command that shows it.
        as_run: Whether a run that helped was in the words of one of `edits`; else it was of the same change in others.
    """

    mitigation: str
    about: str
    standing: str
    evidence: str
    edits: tuple[Edit, ...] = ()
    triggers: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()
    fails: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    run: Run | None = None
    as_run: bool = False


@dataclass(frozen=True)
class Remedy:
    """What to change.

    Attributes:
        actions: In their order.
        offers: Mitigations that may help, the first one first.
        does_not_help: Mitigations that were run and failed in this case.
    """

    actions: tuple[Action, ...] = ()
    offers: tuple[Offer, ...] = ()
    does_not_help: tuple[Offer, ...] = ()

    @classmethod
    def of(cls, advice: str, *actions: Action) -> Remedy:
        """The usual one: a sentence, then what it comes to."""
        return cls((Advice(advice), *actions))


def each_text(remedy: Remedy, change: Callable[[str], str]) -> Remedy:
    """A remedy with every text in it changed.

    >>> each_text(Remedy((Install(("trl==1.0",), note="on ada"),)), str.upper).actions[0].note
    'ON ADA'
    """
    changed: Remedy = _changed(remedy, change)
    return changed


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_changed(item, change) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{name: _changed(item, change) for name, item in vars(value).items()})
    return value
