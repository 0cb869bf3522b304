"""Asks one question here, and makes the line of the store of its answer."""

from __future__ import annotations

import datetime
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnostics.matrix.build.paths import shareable
from diagnostics.matrix.plan.verdicts import Answer, Outcome
from diagnostics.matrix.records.events import Event

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable
    from pathlib import Path

    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.run.board import Question

# An infrastructure fault is tried once more within a run.
ATTEMPTS = 2


def ask(
    workplace: Workplace,
    item: Question,
    run_name: str,
    stopped: threading.Event,
    attempts: int = ATTEMPTS,
) -> Event:
    """Asks one question here and returns the answer with all it rests on; an infrastructure fault is tried again.

    Args:
        workplace: where.
        item: the question.
        run_name: of the run that asks.
        stopped: set by an interrupt; nothing is tried again then.
        attempts: how often it is tried in all.
    """
    started, clock = now(), time.monotonic()
    for attempt in range(1, attempts + 1):
        try:
            answer = item.layer.ask(workplace, item.cell)
        except Exception as error:  # noqa: BLE001 - a bug in a layer is a verdict of its own, and the run goes on
            answer = Answer(
                Outcome.INFRA_ERROR,
                f"the layer failed itself: {type(error).__name__}: {error}",
                item.layer.evidence,
            )
        if answer.outcome is not Outcome.INFRA_ERROR or stopped.is_set():
            break
        if attempt < attempts:
            workplace.say(f"trying once more: {answer.summary[:80]}")
    return Event(
        identity=item.identity,
        cell=item.cell.id,
        layer=item.layer.name,
        answer=_clean(answer, workplace.store.folder),
        inputs=item.inputs,
        command=item.command,
        started=started,
        seconds=round(time.monotonic() - clock, 2),
        run=run_name,
    )


def _clean(answer: Answer, store: Path) -> Answer:
    """Takes this machine's paths out of everything that reports show."""

    def texts(found: Iterable[str]) -> tuple[str, ...]:
        return tuple(shareable(text, store) for text in found)

    return replace(
        answer,
        summary=" ".join(shareable(answer.summary, store).split()),
        signs=texts(answer.signs),
        facts=tuple(map(texts, answer.facts)),
        details=texts(answer.details),
        excerpt=shareable(answer.excerpt, store),
    )


def now() -> str:
    """Returns the time as events have it: UTC, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
