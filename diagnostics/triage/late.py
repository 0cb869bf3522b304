"""The second look, at logs in which no rule found a root: leads, nearest issues, and whether the run ended at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics.output.redact import mask_and_cut
from diagnostics.triage import nearest, symptoms
from diagnostics.triage.endings import end_of
from diagnostics.triage.leads import alike, asks, together
from diagnostics.triage.metrics import rows_of
from diagnostics.triage.seen import Hit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from diagnostics.catalog.model import Issue
    from diagnostics.triage.endings import End
    from diagnostics.triage.leads import Lead
    from diagnostics.triage.rules import Rules
    from diagnostics.triage.seen import Seen
    from diagnostics.triage.symptoms import Symptom

# A log of so few lines was chosen by somebody.
_PASTED = 16
_FIRST = 3


@dataclass(frozen=True)
class Late:
    """What a second look found.

    Attributes:
        near: The nearest known issues, to look at.
        ended: The line that says that the run came to its end.
        last: The last lines of logs that do not say so.
        failing: Lines that speak of a failure, or that a logger calls an error, and that no rule knows.
        message: Whether those are a message that somebody pasted.
        recovered: Whether metrics were NaN and are numbers again.
    """

    leads: tuple[Lead, ...] = ()
    near: tuple[Issue, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
    ended: Hit | None = None
    last: tuple[Hit, ...] = ()
    failing: tuple[Hit, ...] = ()
    message: bool = False
    recovered: bool = False


def late_look(seen: Sequence[Seen], rules: Rules) -> Late:
    """Looks at heads and tails of logs that were read already."""
    ends = [(log, end_of(log)) for log in seen]
    rows = [row for log in seen for row in rows_of(log)]
    shown = symptoms.shown(rows, pasted=sum(log.lines for log in seen) <= _PASTED)
    failing = [
        *dict.fromkeys(
            [*(hit for log in seen for hit in log.loud), *(hit for _, end in ends for hit in end.failing)]
        )
    ]
    wanted = bool(shown or failing) or any(
        end.waits or asks(end) or log.failures or log.errors or log.cut for log, end in ends
    )
    leads = rules.fragments.of(ends, shown) if wanted else []
    near = _near(ends, failing, rules) if wanted else ()
    return Late(
        together(_alike(seen, near, rules), leads),
        near,
        tuple(shown),
        next((end.ended for _, end in ends if end.ended), None),
        tuple(end.last for _, end in ends if end.last),
        tuple(failing),
        any(end.last for _, end in ends) and all(end.message for _, end in ends if end.last),
        symptoms.recovered(rows),
    )


def _near(ends: Iterable[tuple[Seen, End]], failing: Iterable[Hit], rules: Rules) -> tuple[Issue, ...]:
    said: list[str] = []
    for log, _ in ends:
        for one in [*log.failures[:_FIRST], *([log.last] if log.last else []), *log.cut[:2]]:
            said += nearest.words_of(one)
        for hit in log.errors[:_FIRST]:
            said += nearest.words(hit.text)
    for hit in list(failing)[:6]:
        said += nearest.words(hit.text)
    return tuple(rules.issues[code] for code in rules.index.near(said))


def _alike(seen: Iterable[Seen], near: Iterable[Issue], rules: Rules) -> Iterator[Lead]:
    """What a message is much like, where the whole log's words are near that entry, too."""
    said = {hit.text: hit for log in seen for hit in _raised(log) if not rules.follows(hit.text)}
    found = rules.messages.alike(said) if said else None
    if found and found[0] in {issue.code for issue in near}:
        code, line, text = found
        yield alike(rules.issues[code], said[text], line)


def _raised(log: Seen) -> Iterator[Hit]:
    for one in [*log.failures[:_FIRST], *([log.last] if log.last else [])]:
        yield Hit(
            log.source, one.end, mask_and_cut(f"{one.type}: {one.message}".rstrip(": "), 400), one.rank, one
        )
    if not log.cut:
        yield from log.errors[:_FIRST]
