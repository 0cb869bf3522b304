"""What a repro is made of: triggers that make a known issue happen, mitigations, and the outcome of an attempt.

A repro drives upstream code as it was released. It never raises the failure itself: an attempt counts as reproduced
when the failure came out of a frame of upstream code, or, for a silent one, when the figures show it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Outcome(str, Enum):
    """What came of an attempt."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not_reproduced"
    MITIGATED = "mitigated"
    NOT_MITIGATED = "not_mitigated"
    INAPPLICABLE = "inapplicable"
    ERROR = "error"
    TIMEOUT = "timeout"


INCOMPLETE = frozenset({Outcome.ERROR, Outcome.TIMEOUT})


class NotApplicableError(Exception):
    """Raised by a trigger when a mitigation has no meaning for it; the text says why."""


@dataclass(frozen=True)
class Work:
    """What an attempt got done, as its caller sees it.

    Attributes:
        expected: Tokens due, by request.
        received: Tokens that reached the one who asked, by request.
        leaked_blocks: KV cache blocks still taken after everything was drained.
        note: What else is worth saying, in a line.
    """

    expected: Mapping[str, int]
    received: Mapping[str, int]
    leaked_blocks: int = 0
    note: str = ""

    @property
    def missing(self) -> list[str]:
        """The requests that did not get all their tokens."""
        return [name for name, tokens in self.expected.items() if self.received.get(name) != tokens]

    @property
    def complete(self) -> bool:
        """Every request finished with all its tokens and every block came back."""
        return not self.missing and self.leaked_blocks == 0

    def describe(self) -> str:
        """One line on what was done and what was not."""
        parts = []
        if self.missing:
            parts.append(
                f"{len(self.missing)} of {len(self.expected)} requests not served in full ({', '.join(self.missing)})"
            )
        if self.leaked_blocks:
            parts.append(f"{self.leaked_blocks} KV cache blocks leaked")
        if not parts:
            parts.append(f"{len(self.expected)} requests finished, {sum(self.expected.values())} tokens")
        return "; ".join([*parts, self.note] if self.note else parts)


@dataclass(frozen=True)
class Trigger:
    """One sequence of events that makes the failure happen.

    Attributes:
        name: As given to `--trigger`.
        about: The events, in one line.
        run: Does it under the named mitigation (None: without any). Upstream's exceptions pass through.
        silent: The failure shows in the figures, without an exception.
    """

    name: str
    about: str
    run: Callable[[str | None], Work]
    silent: bool = False


@dataclass(frozen=True)
class Mitigation:
    """A named change that is said to help.

    Attributes:
        name: As in the catalogue entry and given to `--mitigation`.
        about: What is changed, in one line.
        helps: The triggers it is recorded to help against. For the others it is recorded not to, or has no meaning.
    """

    name: str
    about: str
    helps: frozenset[str]


@dataclass(frozen=True)
class Repro:
    """A known failure that can be made to happen.

    Attributes:
        code: Of the known issue.
        title: One line.
        assertion: The statement that fails, as upstream wrote it.
        modules: Imported once, before the attempts.
        simulated: What is not real in every attempt.
        triggers: Ways to make it happen.
        mitigations: All that its catalogue entry names.
        inapplicable: Says why the failure cannot occur in the installed release, or None. Looks at the code there.
    """

    code: str
    title: str
    assertion: str
    modules: tuple[str, ...]
    simulated: tuple[str, ...]
    triggers: tuple[Trigger, ...]
    mitigations: tuple[Mitigation, ...]
    inapplicable: Callable[[], str | None]

    def trigger(self, name: str) -> Trigger:
        """The trigger of that name."""
        return next(trigger for trigger in self.triggers if trigger.name == name)

    def mitigation(self, name: str) -> Mitigation:
        """The mitigation of that name."""
        return next(mitigation for mitigation in self.mitigations if mitigation.name == name)


@dataclass(frozen=True)
class Attempt:
    """One trigger under one mitigation or none, and what came of it.

    Attributes:
        assertion: The failing statement, None where nothing was raised.
        where: `path:line` below site-packages.
        function: In which it stands.
        stack: Functions from the repro's first upstream call down to the failing one.
        detail: One line.
        as_recorded: Whether the outcome is the one recorded for this mitigation; None without one.
    """

    trigger: str
    mitigation: str | None
    outcome: Outcome
    assertion: str | None = None
    where: str | None = None
    function: str | None = None
    stack: tuple[str, ...] = ()
    simulated: tuple[str, ...] = ()
    detail: str = ""
    finished: int = 0
    expected: int = 0
    seconds: float = 0.0
    as_recorded: bool | None = field(default=None)

    def to_json(self) -> dict[str, Any]:
        """As it stands in the JSON document."""
        return asdict(self) | {"outcome": self.outcome.value}


def overall(attempts: list[Attempt]) -> Outcome:
    """The outcome of a code: whether the failure occurs in this release when nothing is done against it."""
    bare = [attempt.outcome for attempt in attempts if attempt.mitigation is None]
    for outcome in (Outcome.REPRODUCED, Outcome.ERROR, Outcome.TIMEOUT, Outcome.NOT_REPRODUCED):
        if outcome in bare:
            return outcome
    incomplete = [attempt.outcome for attempt in attempts if attempt.outcome in INCOMPLETE]
    if incomplete:
        return incomplete[0]
    return attempts[0].outcome if attempts else Outcome.INAPPLICABLE
