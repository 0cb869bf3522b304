"""Run the checks (layers) that have no result yet, those that need no environment first; store each answer at once.

A layer is due if it has no final answer or is in `Run.fresh`, and no needed layer blocks it. Programs that a killed run
left running are ended first. Environments of other cells are removed if the disk lacks room for the next one. An
unexpected error in a layer's own code gives an infrastructure fault, and an interrupted layer has no answer.
"""

import datetime
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from packaging.version import Version

from diagnostics.matrix import environments
from diagnostics.matrix.context import Context, without_local_paths
from diagnostics.matrix.progress import Progress
from diagnostics.matrix.results import Question, ResultsGrid, blocking_result
from diagnostics.matrix.store import Event
from diagnostics.process import end_recorded_group


@dataclass
class Run:
    """One run of the matrix: its results so far, and the functions that run questions and record answers."""

    context: Context
    grid: ResultsGrid
    fresh: frozenset[tuple[str, str]] = frozenset()
    """(cell, layer) pairs that run again although they have answers."""
    name: str = field(default_factory=lambda: f"{utc_now()}-{os.getpid()}")
    progress: Progress = field(default_factory=Progress)

    def is_due(self, question: Question) -> bool:
        """Return whether a question has no final answer or must run again, and no needed layer blocks it."""
        event = self.grid.result(question).event
        if event is not None and event.is_final and question.key not in self.fresh:
            return False
        return blocking_result(question, self.grid.cell_row(question.cell.id).layers) is None

    def execute(self, questions: Sequence[Question]) -> None:
        """Run the questions that are due, on this machine; first end programs that a killed run left behind."""
        killed = end_recorded_group(self.context.store.folder / "running.json")
        if killed is not None:
            self.progress.note(f"ended process group {killed}, left running by a run that was killed")
        # Successive light layers share parsed source.
        light = [question for question in questions if not question.layer.heavy]
        for question in sorted(light, key=lambda item: (Version(item.cell.vllm), Version(item.cell.version))):
            self.run_question(question)
        self.context.show_status = self.progress.note
        for question in questions:
            if question.layer.heavy and self.is_due(question):
                self._prepare_environment(question)
                self.run_question(question)

    def run_question(self, question: Question) -> None:
        """Run a question if it is due, and store the answer; an interrupted layer has no answer."""
        if self.is_due(question):
            self.progress.note(f"{question.cell.id} {question.layer.name} …")
            self.record(answer_question(self.context, question, self.name))

    def record(self, event: Event) -> None:
        """Store an answer, add it to the grid, and print its verdict and the number of layers without an answer."""
        self.context.store.append(event)
        self.grid.add(event)
        remaining = sum(result.event is None for result in self.grid.results)
        self.progress.print_result(self.grid.cell_row(event.cell).layers[event.layer], remaining)

    def _prepare_environment(self, question: Question) -> None:
        """Remove the cell's environment if `install` runs again; make room on the disk for a new one."""
        cell = question.cell
        if question.layer.name == "install" and question.key in self.fresh:
            environments.remove_environment(environments.environment_folder(self.context, cell))
        for name in environments.make_room(self.context, cell):
            self.progress.note(f"removed the environment of {name} to make room for {cell.id}")


def answer_question(context: Context, question: Question, run_name: str) -> Event:
    """Run one layer and return its answer as an event, without local paths."""
    started, clock = utc_now(), time.monotonic()
    answer = question.layer.run(context, question.cell)
    answer = answer.change_texts(lambda text: without_local_paths(text, context.store.folder))
    return Event(
        identity=question.identity,
        cell=question.cell.id,
        layer=question.layer.name,
        answer=msgspec.structs.replace(answer, summary=" ".join(answer.summary.split())),
        inputs=question.inputs,
        command=question.command,
        started=started,
        seconds=round(time.monotonic() - clock, 2),
        run=run_name,
    )


def utc_now() -> str:
    """Return the time in the format of events: UTC, ISO 8601, without fractions of a second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
