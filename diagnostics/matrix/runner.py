"""Asks the questions that are due, in order, and stores each answer as it falls."""

from __future__ import annotations

import datetime
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from diagnostics.matrix import environments
from diagnostics.matrix.board import Board, Question, Row, board, obstacle_of
from diagnostics.matrix.events import Event
from diagnostics.matrix.processes import end_left_over
from diagnostics.matrix.verdicts import Answer, Outcome
from diagnostics.matrix.workplace import Workplace, shareable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.matrix.progress import Progress

# An infrastructure fault is tried once more within a run.
ATTEMPTS = 2


@dataclass(frozen=True)
class Options:
    """How to run."""

    fresh: frozenset[tuple[str, str]] = frozenset()
    """(cell, layer) to ask again although they are answered."""
    keep: str = "auto"
    """Environments are kept `always`, `never` (after a cell's last layer), or `auto` (while disk allows)."""


def ordered(questions: Sequence[Question]) -> list[Question]:
    """Returns the light questions of all cells, then the heavy ones cell by cell: the table fills early."""
    light = [item for item in questions if not item.layer.heavy]
    return light + [item for item in questions if item.layer.heavy]


def run(workplace: Workplace, questions: Sequence[Question], options: Options, progress: Progress) -> Board:
    """Asks what is due and returns the board; the store must be locked by the caller."""
    left_over = end_left_over(workplace.store.folder / "running.json")
    if left_over is not None:
        progress.note(f"ended process group {left_over}, left running by a run that was killed")
    workplace.say = progress.say
    events = workplace.store.read()
    name = f"{_now()}-{os.getpid()}"
    due = ordered(questions)
    asked: set[str] = set()
    for position, item in enumerate(due):
        now = board(questions, events)
        if not _is_due(item, now, options):
            continue
        progress.started(item, now)
        if item.layer.heavy and options.keep == "auto":
            _make_room(workplace, item, progress)
        if item.layer.name == "install" and (item.cell.id, "install") in options.fresh:
            environments.remove(workplace, item.cell)  # asked afresh, it is built afresh
        event = _ask(workplace, item, name)
        workplace.store.append(event)
        events.append(event)
        asked.add(item.identity)
        after = board(questions, events)
        progress.finished(_row(after, item).square(item.layer.name), after)
        if options.keep == "never" and not any(
            _same_environment(item, later) for later in due[position + 1 :]
        ):
            _drop(workplace, item, progress)
    return board(questions, events)


def _is_due(item: Question, now: Board, options: Options) -> bool:
    row = {square.question.layer.name: square for square in _row(now, item).squares}
    event = row[item.layer.name].event
    answered = event is not None and event.finished
    if answered and (item.cell.id, item.layer.name) not in options.fresh:
        return False
    return obstacle_of(item, row) is None


def _row(now: Board, item: Question) -> Row:
    return next(row for row in now.rows if row.cell.id == item.cell.id)


def _ask(workplace: Workplace, item: Question, run_name: str) -> Event:
    started, clock = _now(), time.monotonic()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            answer = item.layer.ask(workplace, item.cell)
        except Exception as error:  # noqa: BLE001 - a bug in a layer is a verdict of its own, and the run goes on
            answer = Answer(
                Outcome.INFRA_ERROR,
                f"the layer failed itself: {type(error).__name__}: {error}",
                item.layer.evidence,
            )
        if answer.outcome is not Outcome.INFRA_ERROR:
            break
        if attempt < ATTEMPTS:
            workplace.say(f"trying once more: {answer.summary[:80]}")
    return Event(
        identity=item.identity,
        cell=item.cell.id,
        layer=item.layer.name,
        answer=_clean(answer, workplace),
        inputs=item.inputs,
        command=item.command,
        started=started,
        seconds=round(time.monotonic() - clock, 2),
        run=run_name,
    )


def _clean(answer: Answer, workplace: Workplace) -> Answer:
    """Takes this machine's paths out of everything that reports show."""
    return replace(
        answer,
        summary=" ".join(shareable(answer.summary, workplace).split()),
        signs=tuple(shareable(text, workplace) for text in answer.signs),
        details=tuple(shareable(text, workplace) for text in answer.details),
        excerpt=shareable(answer.excerpt, workplace),
    )


def _make_room(workplace: Workplace, item: Question, progress: Progress) -> None:
    recipe = item.cell.recipe
    if recipe is None or environments.existing(workplace, item.cell):
        return
    for name in environments.make_room(workplace, item.cell, recipe.disk_gb):
        progress.note(f"removed the environment of {name}: free disk was below {recipe.disk_gb:.0f} GB")


def _same_environment(item: Question, later: Question) -> bool:
    return later.cell.id == item.cell.id and later.layer.heavy


def _drop(workplace: Workplace, item: Question, progress: Progress) -> None:
    if item.layer.heavy and environments.remove(workplace, item.cell):
        progress.note(f"removed the environment of {item.cell.id}")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
