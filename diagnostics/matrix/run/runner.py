"""Asks the questions that are due, in order, and stores each answer as it falls."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.version import Version

from diagnostics.matrix.build import disk, environments
from diagnostics.matrix.run.asking import ask, now
from diagnostics.matrix.run.board import Board, Question, Standing, obstacle_of
from diagnostics.processes import GRACE_S, end_left_over

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.records.events import Event
    from diagnostics.matrix.run.progress import Progress


@dataclass(frozen=True)
class Options:
    """How to run."""

    fresh: frozenset[tuple[str, str]] = frozenset()
    """(cell, layer) to ask again although they are answered."""
    keep: str = "auto"
    """Environments are kept `always`, `never` (after a cell's last layer), or `auto` (while disk allows)."""
    only: frozenset[tuple[str, str]] | None = None
    """(cell, layer) that may be asked at all; None for all of them."""
    budget_gb: float | None = None
    """What all environments may take together, in GB of 1e9 bytes; None for what the disk has."""
    jobs: int = 1
    """How many questions that need no environment are asked at a time."""


def ordered(questions: Sequence[Question]) -> list[Question]:
    """Returns the light questions of all cells, then the heavy ones cell by cell: the table fills early."""
    light = [item for item in questions if not item.layer.heavy]
    return light + [item for item in questions if item.layer.heavy]


def run(
    workplace: Workplace,
    questions: Sequence[Question],
    options: Options,
    progress: Progress,
    elsewhere: Callable[[MatrixRun, Sequence[Question]], None] | None = None,
) -> Board:
    """Asks what is due and returns the board; the store must be locked by the caller.

    Args:
        workplace: where.
        questions: what the board is about.
        options: how.
        progress: is told what goes on.
        elsewhere: asks the questions on other machines; None to ask them here.
    """
    left_over = end_left_over(workplace.store.folder / "running.json")
    if left_over is not None:
        progress.note(f"ended process group {left_over}, left running by a run that was killed")
    workplace.say = progress.say
    due = ordered(questions)
    going = MatrixRun(workplace, options, progress, Standing(questions, workplace.store.read()))
    if elsewhere is not None:
        elsewhere(going, due)
        return going.standing.board
    _ask_here(going, due)
    return going.standing.board


def _ask_here(going: MatrixRun, due: Sequence[Question]) -> None:
    workplace, options, progress = going.workplace, going.options, going.progress
    light = [item for item in due if not item.layer.heavy]
    heavy = due[len(light) :]
    if options.jobs > 1:
        going.together(light)
    else:
        for item in light:
            going.one(item)
    for position, item in enumerate(heavy):
        if not going.is_due(item):
            continue
        if options.keep == "auto" or options.budget_gb is not None:
            _make_room(workplace, item, options.budget_gb, progress)
        if item.layer.name == "install" and (item.cell.id, "install") in options.fresh:
            environments.remove(workplace, item.cell)  # asked afresh, it is built afresh
        going.one(item)
        if options.keep == "never" and not any(
            _same_environment(item, later) for later in heavy[position + 1 :]
        ):
            _drop(workplace, item, progress)


@dataclass
class MatrixRun:
    """One run: what it knows so far, and who may write it down."""

    workplace: Workplace
    options: Options
    progress: Progress
    standing: Standing
    name: str = field(default_factory=lambda: f"{now()}-{os.getpid()}")
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _errors: list[Exception] = field(default_factory=list)

    def one(self, item: Question) -> None:
        """Asks a question if it is due, and stores the answer."""
        with self._writing:
            if self._stopped.is_set() or not self.is_due(item):
                return
            self.begin(item)
        event = ask(self.workplace, item, self.name, self._stopped)
        with self._writing:
            if self._stopped.is_set():
                return  # what an interrupt ended has answered nothing
            self.record(item, event)

    def begin(self, item: Question, where: str = "") -> None:
        """Says that a question is being asked, and on which machine if it isn't this one."""
        self.progress.started(item, self.standing.board, where)

    def record(self, item: Question, event: Event) -> None:
        """Stores an answer and shows it."""
        self.workplace.store.append(event)
        self.standing.add(event)
        square = self.standing.row(item.cell.id).square(item.layer.name)
        self.progress.finished(square, self.standing.board)

    def is_due(self, item: Question) -> bool:
        """Tells whether a question is open, or to be asked again, and nothing is in its way."""
        name = (item.cell.id, item.layer.name)
        if self.options.only is not None and name not in self.options.only:
            return False
        row = {square.question.layer.name: square for square in self.standing.row(item.cell.id).squares}
        event = row[item.layer.name].event
        answered = event is not None and event.finished
        if answered and name not in self.options.fresh:
            return False
        return obstacle_of(item, row) is None

    def together(self, items: Sequence[Question]) -> None:
        """Asks questions that need no environment, several at a time.

        What reads source keeps this process busy, what resolves waits for uv: one worker takes from the one end, where
        the reading stands, the others from the other end, until they meet.
        """
        waiting = deque(sorted(items, key=_place))

        def work(first: bool) -> None:
            while not self._stopped.is_set():
                try:
                    item = waiting.popleft() if first else waiting.pop()
                except IndexError:
                    return
                self.one(item)

        self._finish(
            [threading.Thread(target=self._work, args=(work, n == 0)) for n in range(self.options.jobs)]
        )

    def _work(self, work: Callable[[bool], None], first: bool) -> None:
        try:
            work(first)
        except Exception as error:  # noqa: BLE001 - raised again where the run can end by it
            self._errors.append(error)
            self._stopped.set()

    def _finish(self, workers: Sequence[threading.Thread]) -> None:
        """Waits for the workers; an interrupt ends their resolvers, and a worker that hangs ends with the process."""
        for worker in workers:
            worker.daemon = True
            worker.start()
        try:
            for worker in workers:
                worker.join()
        except BaseException:
            self._stopped.set()
            end = time.monotonic() + GRACE_S
            while self.workplace.running and time.monotonic() < end:
                for process in list(self.workplace.running):
                    process.terminate()
                time.sleep(0.05)
            for process in list(self.workplace.running):
                process.kill()
            with self._writing:  # an answer that is being written down is written whole
                pass
            raise
        if self._errors:
            raise self._errors[0]


def _place(item: Question) -> tuple[int, tuple[Version, ...]]:
    """Where a light question stands: reading source first, by release of vLLM, so that each is parsed once."""
    if not item.layer.reads:
        return 1, ()
    return 0, (Version(item.cell.vllm), Version(item.cell.trl))


def _make_room(workplace: Workplace, item: Question, budget_gb: float | None, progress: Progress) -> None:
    recipe = item.cell.recipe
    if recipe is None or environments.existing(workplace, item.cell):
        return
    if budget_gb is not None:
        folder = workplace.folder("environments")
        for name in disk.within(folder, budget_gb, recipe.disk_gb, keep=item.cell.id):
            progress.note(f"removed the environment of {name}: the budget is {budget_gb:.0f} GB")
        return
    for name in environments.make_room(workplace, item.cell, recipe.disk_gb):
        progress.note(f"removed the environment of {name}: free disk was below {recipe.disk_gb:.0f} GB")


def _same_environment(item: Question, later: Question) -> bool:
    return later.cell.id == item.cell.id and later.layer.heavy


def _drop(workplace: Workplace, item: Question, progress: Progress) -> None:
    if item.layer.heavy and environments.remove(workplace, item.cell):
        progress.note(f"removed the environment of {item.cell.id}")
