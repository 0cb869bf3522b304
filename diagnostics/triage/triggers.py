"""How a failure came about, where its log can tell: by the traceback itself, or by one that stands before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from diagnostics.catalog.model import Earlier, Frame, Issue
    from diagnostics.triage.seen import Hit, Seen
    from diagnostics.triage.tracebacks import Traceback


def shown(issue: Issue, hits: Sequence[Hit], seen: Iterable[Seen]) -> tuple[str, ...]:
    """The triggers of an issue that its hits show; none where they can't tell.

    Args:
        issue: The issue.
        hits: Where it shows, the first one first.
        seen: All logs of the run.
    """
    if not issue.triggers:
        return ()
    own = [hit.traceback for hit in hits if hit.traceback]
    inside = {frame for traceback in own for frame in traceback.frames}
    before = list(_before(hits[0], own, seen))
    return tuple(
        trigger.name
        for trigger in issue.triggers
        if any(holds(frame, inside) for frame in trigger.frames)
        or any(_was(sign, traceback) for sign in trigger.earlier for traceback in before)
    )


def holds(frame: Frame, frames: Iterable[tuple[str, str]]) -> bool:
    """Whether a frame is among (path, function) of some tracebacks."""
    return any(
        path.endswith(frame.path) and function.rpartition(".")[2] == frame.function
        for path, function in frames
    )


def _before(first: Hit, own: Sequence[Traceback], seen: Iterable[Seen]) -> Iterable[Traceback]:
    """What failed before in the same process, as far as a log tells processes apart."""
    return (
        failure
        for log in seen
        if log.source == first.source
        for failure in log.failures
        if failure.end < first.line
        and failure.rank == first.rank
        and not any(failure is traceback for traceback in own)
    )


def _was(sign: Earlier, traceback: Traceback) -> bool:
    return traceback.type.endswith(sign.raised) and holds(sign.frame, traceback.frames)
