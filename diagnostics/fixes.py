"""Define fixes, their actions and ranked mitigations, and turn them into sentences, shell commands and JSON.

An action is data, and this module runs none. `command_of`, `sentence_of`, `edit_text` and `edit_without_framework` turn
an action into text, `fix_lines` a whole fix. `one_line`, `count_of` and `join_some` format any printed text.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from diagnostics import called_as, frameworks
from diagnostics.collect.metadata_validation import is_install_word
from diagnostics.output.redact import MASK, mask, redact
from diagnostics.output.sanitize import has_control

_MAX_CASES, _MAX_FRAMEWORKS = 3, 2
SEVERAL_CASES = "it depends on the case:"
# Result of testing a mitigation against the triggers of the user's case; the values are those of the JSON document.
VERIFIED, NOT_TESTED, DOES_NOT_HELP = "shown", "untried", "fails"


@dataclass(frozen=True, kw_only=True)
class ShellCommand:
    """An action that is a command.

    Attributes:
        line: The quoted command without its note, set when its words are redacted; empty before that.
    """

    line: str = field(default="", compare=False)


@dataclass(frozen=True)
class Install(ShellCommand):
    """Install packages.

    Attributes:
        requirements: Requirement specifiers.
        by: The installer command.
        options: Installer options such as --force-reinstall.
        note: A remark printed after the command.
        framework: Framework of an edit from the catalog; empty for any.
    """

    requirements: tuple[str, ...]
    by: tuple[str, ...] = ("pip", "install")
    options: tuple[str, ...] = ()
    note: str = ""
    framework: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """The command; empty if a requirement is none that `is_install_word` accepts."""
        are_valid = all(map(is_install_word, self.requirements))
        return (*self.by, *self.options, *self.requirements) if are_valid else ()


@dataclass(frozen=True)
class Uninstall(ShellCommand):
    """Remove packages."""

    names: tuple[str, ...]
    by: tuple[str, ...] = ("pip", "uninstall")

    @property
    def words(self) -> tuple[str, ...]:
        """The command; empty if a name is none."""
        return (*self.by, *self.names) if all(map(is_install_word, self.names)) else ()


@dataclass(frozen=True)
class Unset(ShellCommand):
    """Unset environment variables."""

    names: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The command; empty if a name is none."""
        return ("unset", *self.names) if all(map(str.isidentifier, self.names)) else ()


@dataclass(frozen=True)
class SetVariables(ShellCommand):
    """Set environment variables, as (name, value)."""

    values: tuple[tuple[str, str], ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The command."""
        return ("export", *(f"{name}={value}" for name, value in self.values))


@dataclass(frozen=True)
class SetOption:
    """Change an option of a framework.

    Attributes:
        framework: Framework name; empty for the option names of the user's own config.
        edit: The option and its value.
        versions: Releases that have this option name, if other releases use another name.
    """

    framework: str
    edit: str
    versions: str = ""


@dataclass(frozen=True)
class Advice:
    """A sentence of advice that is neither a command nor an option."""

    text: str
    framework: str = ""


@dataclass(frozen=True)
class Explain(ShellCommand):
    """Run `grpo-doctor explain` for a code."""

    code: str

    @property
    def words(self) -> tuple[str, ...]:
        """The command."""
        return (*called_as().split(), "explain", self.code)


@dataclass(frozen=True)
class Run(ShellCommand):
    """Any other command. Like the other actions it is printed, never run.

    Attributes:
        words: The words of the command, not quoted.
        piped: Commands that the output is piped through.
        into: File that receives the output.
        then: Command to run after success.
        note: A remark printed after the command.
    """

    words: tuple[str, ...]
    piped: tuple[tuple[str, ...], ...] = ()
    into: str = ""
    then: Run | None = None
    note: str = ""


Edit = Install | SetOption | Advice
"""An action that a catalog entry can prescribe for a framework."""
Action = Edit | Uninstall | Unset | SetVariables | Explain | Run
ACTION_KINDS: dict[type, str] = {
    Install: "install", Uninstall: "uninstall", Unset: "unset", SetVariables: "set_variables",
    SetOption: "set_option", Advice: "advice", Explain: "explain", Run: "run",
}  # fmt: skip


@dataclass(frozen=True)
class RankedMitigation:
    """A mitigation of a known issue, with its test results for the user's case.

    Attributes:
        mitigation: Name of the mitigation in the catalog entry.
        standing: VERIFIED, NOT_TESTED or DOES_NOT_HELP.
        evidence: Evidence level: declared, static or executed.
        edits: Edits for the frameworks at hand, else for vLLM; all if no framework is known; empty if there are none.
        triggers: Triggers of the case at hand; empty if unknown.
        helps: Triggers against which the mitigation helped in a recorded run.
        fails: Triggers against which the mitigation did not help in a recorded run.
        untried: Possible triggers of this case that the mitigation was not run against.
        run: The command that reproduces a failure despite the mitigation.
        when: The condition of the mitigation, if the case at hand does not show it.
        as_run: Whether a recorded run used one of these edits; otherwise it made the same change with other packages.
        run_with: The packages of the issue's recorded runs.
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
    when: str = ""
    as_run: bool = False
    run_with: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fix:
    """The recommended change for a finding.

    Attributes:
        actions: Commands, options and advice, in the order in which to follow them.
        offers: Mitigations that may help, best first.
        does_not_help: Mitigations that, by recorded runs, do not help in this case.
    """

    actions: tuple[Action, ...] = ()
    offers: tuple[RankedMitigation, ...] = ()
    does_not_help: tuple[RankedMitigation, ...] = ()

    @classmethod
    def of(cls, advice: str, *actions: Action) -> Fix:
        """Build the usual fix: one sentence, then the actions that carry it out."""
        return cls((Advice(advice), *actions))

    def to_json(self) -> dict[str, Any]:
        """Return the fix as text and commands, and the data that they are made from."""
        return {
            "text": fix_text(self),
            "commands": list(commands_of(self.actions)),
            "actions": [_action_json(action) for action in self.actions],
            "offers": [_mitigation_json(entry) for entry in self.offers],
            "does_not_help": [_mitigation_json(entry) for entry in self.does_not_help],
        }


NOT_SHOWN = "# not shown: redaction or escaping would change this command"
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^]]*\])?\+?=")
# fish reads a backslash before a quotation mark, and before another backslash, as an escape.
_QUOTED = re.compile(r"""(?a:[\w@%+=:,./~ -]|'(?:[^'\\]|\\[^'\\])*'|"'"|"\$HOME")*""")


def python_command(python: str, release: str, *words: str) -> tuple[str, ...]:
    """Return the command that starts a Python which imports nothing from the working folder.

    Python 3.11 and newer have `-P`. An older or unknown one gets `-I`, which also ignores PYTHONPATH.

    >>> python_command("python3.9", "3.9", "-m", "pip")
    ('python3.9', '-I', '-m', 'pip')
    """
    minors = [int(minor) for minor in re.findall(r"3\.(\d{1,3})\b", release)]
    return (python, "-P" if minors and min(minors) > 10 else "-I", *words)


def uv_pip(action: str, *words: str) -> tuple[str, ...]:
    """Return a command of `uv pip` that takes no package index from the working folder's uv.toml."""
    return ("uv", "pip", action, "--no-config", *words)


def quote_command(words: tuple[str, ...]) -> str:
    """Quote a command for a shell, with the home folder as `~` at the start of a word and `"$HOME"` elsewhere.

    Call it with words that are not redacted: only they tell the home folder from a folder called `~`. The command is
    then printed escaped, and masked or redacted. A word that this changes is quoted, because a shell would read
    `<user>` as a redirection. If it would take quotation marks away, the words are redacted before they are quoted. If
    that does not help, or there is a control character, or a shell would read the program as NAME=VALUE, a comment is
    returned.

    >>> quote_command(("pip", "install", "numpy<2")), quote_command(("PATH=x/python", "-V")) == NOT_SHOWN
    ("pip install 'numpy<2'", True)
    """
    if any(MASK in word or has_control(word) for word in words):
        return NOT_SHOWN
    # Quotation marks within a word would hide the shape of its secret.
    first: Callable[[str], str] = str if all(mask(word) == word for word in words) else mask
    for change_part in (first, redact):
        line = " ".join(_quote_word(word, change_part) for word in words)
        if not _ASSIGNMENT.match(line) and all(
            _is_quoted(change(line), len(words)) for change in (mask, redact)
        ):
            return line
    return NOT_SHOWN


def _is_quoted(line: str, count: int) -> bool:
    """Return whether a line has this many words, and nothing outside of quotation marks that a shell would run."""
    return _QUOTED.fullmatch(line) is not None and len(shlex.split(line)) == count


def _quote_word(word: str, change: Callable[[str], str]) -> str:
    """Quote a word for a shell if a shell would change it, or redaction; the home folder becomes `~` or `"$HOME"`.

    Args:
        word: The word, not redacted.
        change: Applied to the word's parts between the names of the home folder.
    """
    home = os.path.expanduser("~")  # noqa: PTH111 - as a string, to be compared with strings
    first, *rest = re.split(rf"{re.escape(home)}(?![\w-])", word) if len(home) > 1 else [word]
    if first or not rest:
        return '"$HOME"'.join(_quote_part(change(part)) for part in (first, *rest)) or "''"
    # A shell expands a tilde before a slash alone.
    start = "~" if rest[0][:1] in ("", "/") and len(rest) == 1 else '"$HOME"'
    slash = "/" * rest[0].startswith("/")
    parts = [change(part) for part in (rest[0].removeprefix("/"), *rest[1:])]
    return f"{start}{slash}" + '"$HOME"'.join(map(_quote_part, parts))


def _quote_part(text: str) -> str:
    if not text:
        return ""
    quoted = shlex.quote(text)
    # zsh and fish expand a word that begins with `=` or `%`.
    is_plain = redact(text) == text and text[0] not in "=%"
    return quoted if quoted != text or is_plain else f"'{text}'"


def line_of(action: Action) -> str:
    """Return the shell command of an action without its note; empty if the action is no command."""
    if isinstance(action, Advice | SetOption) or not (action.line or action.words):
        return ""
    if action.line:
        return action.line
    parts = [quote_command(action.words)]
    if isinstance(action, Run):
        parts += (part for words in action.piped for part in (" | ", quote_command(words)))
        parts += [" > ", quote_command((action.into,))] if action.into else []
        parts += [" && ", command_of(action.then)] if action.then else []
    line = "".join(parts)
    kept = all(change(line) == "".join(map(change, parts)) for change in (mask, redact))
    return line if kept and NOT_SHOWN not in line else NOT_SHOWN


def command_of(action: Action) -> str:
    """Return the shell command of an action, and its note; empty if the action is no command."""
    line = line_of(action)
    note = one_line(action.note) if isinstance(action, Install | Run) else ""
    return f"{line}  # {note}" if note and line not in {"", NOT_SHOWN} else line


def commands_of(actions: Iterable[Action]) -> tuple[str, ...]:
    """Return the shell commands of those actions that are commands."""
    return tuple(line for action in actions if (line := command_of(action)))


def sentence_of(action: Action) -> str:
    """Return the sentence of an action; empty if the action is a command."""
    return _with_framework(action) if isinstance(action, Advice | SetOption) else ""


def edit_text(action: Action) -> str:
    """Return an action for use within a line: its sentence or command, with the framework's name if it has one."""
    if isinstance(action, Install):
        return _with_framework(action)
    return sentence_of(action) or command_of(action)


def edit_without_framework(action: Edit) -> str:
    """Return a catalog edit without its framework's name.

    >>> edit_without_framework(Install(("numpy<2",), note="or wait", framework="trl"))
    "pip install 'numpy<2', or wait"
    """
    if isinstance(action, Install):
        line = line_of(action)
        return f"{line}, {action.note}" if action.note else line
    return action.text if isinstance(action, Advice) else action.edit


def _with_framework(action: Edit) -> str:
    if not action.framework:
        return edit_without_framework(action)
    versions = action.versions if isinstance(action, SetOption) else ""
    name = frameworks.DISPLAY_NAMES[action.framework]
    return f"{name} {versions}".rstrip() + f": {edit_without_framework(action)}"


def mitigation_line(ranked: RankedMitigation) -> str:
    """Return a mitigation as a line: condition, edits, whether a run verified it, and triggers it failed against."""
    change = "; ".join(map(edit_text, ranked.edits)) or ranked.about
    line = f"{_condition(ranked)}{change if change.endswith('...') else change.rstrip('.')} ({_test_result(ranked)})."
    return line + (f" Does not help against: {_trigger_names(ranked.fails)}." if ranked.fails else "")


def _condition(ranked: RankedMitigation) -> str:
    return f"{ranked.when[0].upper()}{ranked.when[1:]}: " if ranked.when else ""


def _test_result(ranked: RankedMitigation) -> str:
    """Describe what was tested; a run against one trigger proves nothing about the others."""
    if ranked.evidence != "executed":
        return f"not tested; {'read in source' if ranked.evidence == 'static' else 'others reported it'}"
    names = ", ".join(frameworks.DISPLAY_NAMES.get(it, it).removesuffix(" itself") for it in ranked.run_with)
    word = "verified" if ranked.as_run else f"verified with {names or 'another option'}"
    with_triggers = f"{word} for: {_trigger_names(ranked.helps)}"
    if ranked.standing == NOT_TESTED:
        return f"not tested in this case; {with_triggers}"
    if ranked.untried:
        return f"{with_triggers}; not tested for: {_trigger_names(ranked.untried)}"
    helps_always = set(ranked.triggers) <= set(ranked.helps) if ranked.triggers else not ranked.fails
    return word if helps_always else with_triggers


def _trigger_names(triggers: Iterable[str]) -> str:
    """Return the catalog's names of triggers as words, joined by commas."""
    return ", ".join(trigger.replace("_", " ") for trigger in triggers)


def failed_mitigation_line(ranked: RankedMitigation) -> str:
    """Return the line for a mitigation that does not help here: by a test, or because it is for other triggers."""
    run = f": {command_of(ranked.run)}" if ranked.run else ""
    against = [name for name in ranked.fails if name in ranked.triggers] or ranked.fails
    change = "; ".join(map(edit_text, ranked.edits)) or ranked.about
    if not against:
        return f"Does not help here, but against {_trigger_names(ranked.helps)}: {change.rstrip('.')}."
    return f"Does not help against {_trigger_names(against)}: {change.rstrip('.')} (tested{run})."


def fix_lines(fix: Fix) -> list[str]:
    """Return the sentences of a fix and its mitigations, one per line, without its commands."""
    lines = [line for action in fix.actions for line in sentence_of(action).splitlines()]
    lines += map(mitigation_line, fix.offers)
    return [*lines, *map(failed_mitigation_line, fix.does_not_help)]


def fix_text(fix: Fix) -> str:
    """Return the sentences of a fix and its mitigations as one text."""
    return "\n".join(fix_lines(fix))


def has_option(fix: Fix | None, line: str) -> bool:
    """Return whether a line of a fix has an edit of several words that is no sentence: a terminal must not wrap it."""
    offers = (*fix.offers, *fix.does_not_help) if fix else ()
    edits = (edit for offer in offers for edit in offer.edits if not isinstance(edit, Advice))
    return any(" " in text and text in line for text in map(edit_without_framework, edits))


def first_lines(fix: Fix | None, *, any_framework: bool = False) -> list[str]:
    """Return the first sentence of a fix, if any; for a mitigation with several edits, a heading and a line for each.

    If the case does not show the condition of the best of several mitigations, return a heading and the first ones.
    With `any_framework`, the reader may use another framework than that of a single edit, which has its own line then.
    """
    sentence, _ = first_step(fix)
    best = fix.offers[0] if fix and fix.offers else None
    if fix and best and best.when and len(fix.offers) > 1 and sentence == mitigation_line(best):
        offers = sorted(fix.offers[:_MAX_CASES], key=lambda offer: not offer.when)
        return [SEVERAL_CASES, *(f"- {_case_line(offer)}" for offer in offers)]
    is_for_all = best and len(best.edits) < (1 if any_framework else 2)
    if best is None or is_for_all or sentence != mitigation_line(best):
        return [sentence] if sentence else []
    heading = f"{_condition(best)}{best.about.rstrip('.')} ({_test_result(best)}):"
    return [heading, *(f"- {edit_text(edit)}" for edit in best.edits)]


def _case_line(offer: RankedMitigation) -> str:
    """Return a mitigation with its condition, description and edits; edits for many frameworks are left out."""
    edits = offer.edits if len({edit.framework for edit in offer.edits}) <= _MAX_FRAMEWORKS else ()
    when = ": ".join([offer.when or "otherwise", *([offer.about] if edits else [])])
    return mitigation_line(replace(offer, when=when, edits=edits))


def first_step(fix: Fix | None) -> tuple[str, str]:
    """Return the first sentence of a fix, and its first command other than `explain`; empty if there is none."""
    if fix is None:
        return "", ""
    commands = commands_of(action for action in fix.actions if not isinstance(action, Explain))
    return next(iter(fix_lines(fix)), ""), next(iter(commands), "")


def one_line(text: str) -> str:
    """Return a text without line breaks and repeated blanks."""
    return " ".join(text.split())


def count_of(count: int, word: str) -> str:
    """Return a count with its noun.

    >>> count_of(1, "line"), count_of(2, "process")
    ('1 line', '2 processes')
    """
    return f"{count} {word}" if count == 1 else f"{count} {word}{'es' if word.endswith('s') else 's'}"


def join_some(items: Sequence[str], limit: int, separator: str = ", ") -> str:
    """Join the first items, and add the number of the others.

    >>> join_some(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return separator.join(items[:limit]) + more


def _action_json(action: Action) -> dict[str, Any]:
    words = {} if isinstance(action, Advice | SetOption) else {"words": list(action.words)}
    return {"kind": ACTION_KINDS[type(action)], **_json_fields(action), **words}


def _json_fields(value: Action | RankedMitigation) -> dict[str, Any]:
    """Return the fields of an action or mitigation, but for the quoted commands."""
    return asdict(value, dict_factory=lambda pairs: {name: item for name, item in pairs if name != "line"})


def _mitigation_json(ranked: RankedMitigation) -> dict[str, Any]:
    run = command_of(ranked.run) if ranked.run else ""
    return _json_fields(ranked) | {"edits": [_action_json(action) for action in ranked.edits], "run": run}
