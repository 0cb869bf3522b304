"""What the last run of the matrix answered otherwise than the run before."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.matrix.records.events import Event


@dataclass(frozen=True)
class VerdictChange:
    """One question whose answer is another one now, or which was asked for the first time."""

    cell: str
    layer: str
    before: Event | None
    """The answer it had; None: it had none."""
    after: Event

    @property
    def words(self) -> str:
        """What was, what is, and which inputs differ."""
        if self.before is None:
            return f"first answer: {_said(self.after)}"
        old, new = dict(self.before.inputs), dict(self.after.inputs)
        differing = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        why = f"other inputs: {', '.join(differing)}" if differing else "with the same inputs"
        return f"was {_said(self.before)} on {self.before.started[:10]}, is {_said(self.after)} ({why})"


@dataclass(frozen=True)
class Changes:
    """The difference between the last two runs."""

    since: str
    """When the run before the last one began to answer (UTC); '' where there is none."""
    found: tuple[VerdictChange, ...]

    def of(self, cell: str, layer: str) -> VerdictChange | None:
        """Returns the change of one question, if there is one."""
        return self._by_question.get((cell, layer))

    @cached_property
    def _by_question(self) -> dict[tuple[str, str], VerdictChange]:
        return {(item.cell, item.layer): item for item in self.found}


NO_CHANGES = Changes("", ())


def changes(events: Iterable[Event]) -> Changes:
    """Compares what the last run answered with the last answers before it.

    A time-out or a fault of the machine is no answer. What the last run did not ask is unchanged. Where a store holds
    a single run, nothing is said to be new.
    """
    finished = [event for event in events if event.finished]
    last = max((event.run for event in finished), default="")
    before: dict[tuple[str, str], Event] = {}
    after: dict[tuple[str, str], Event] = {}
    for event in finished:
        (after if event.run == last else before)[event.cell, event.layer] = event
    if not before:
        return NO_CHANGES
    newest = max(event.run for event in before.values())
    since = min(event.started for event in before.values() if event.run == newest)
    found = (VerdictChange(*key, before.get(key), event) for key, event in after.items())
    return Changes(
        since,
        tuple(item for item in found if item.before is None or _verdict(item.before) != _verdict(item.after)),
    )


def _verdict(event: Event) -> tuple[str, frozenset[str]]:
    return event.answer.outcome.value, frozenset(event.answer.codes)


def _said(event: Event) -> str:
    return " ".join([event.answer.outcome.value, *event.answer.codes])
