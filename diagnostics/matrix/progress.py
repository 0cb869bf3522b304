"""Display a run on standard error: a status line with finished results above it, or plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.status import Status

from diagnostics.matrix.report import verdict_text
from diagnostics.matrix.results import LayerResult, Question
from diagnostics.matrix.runner import QuietProgress
from diagnostics.output import sanitize


class LineProgress(QuietProgress):
    """One plain line an event."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._start = time.monotonic()

    def started(self, question: Question) -> None:
        """Print which layer starts."""
        self.note(f"{question.cell.id} {question.layer.name} …")

    def finished(self, result: LayerResult, remaining: int) -> None:
        """Print the verdict and how much remains."""
        self.note(f"{result_line(result)} ({remaining} open)")

    def note(self, text: str) -> None:
        """Print a line with the elapsed time."""
        elapsed = time.monotonic() - self._start
        print(f"[{elapsed:7.1f} s] {sanitize.escape(text)}", file=self._stream, flush=True)


class StatusProgress(QuietProgress):
    """A status line with the running layer; finished results scroll above it."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._running = ""

    def started(self, question: Question) -> None:
        """Display which layer runs."""
        self._running = f"{question.cell.id} {question.layer.name}"
        self._status.update(self._running)

    def finished(self, result: LayerResult, remaining: int) -> None:
        """Print the verdict above the status line."""
        self._status.update(f"{self._running} ({remaining} open)")
        self.note(result_line(result))

    def say(self, text: str) -> None:
        """Display the current action."""
        self._status.update(f"{self._running}: {sanitize.escape(text)}")

    def note(self, text: str) -> None:
        """Print a line above the status line."""
        self._status.console.print(sanitize.escape(text))


def result_line(result: LayerResult) -> str:
    """Return one line for a finished layer."""
    question, seconds = result.question, result.event.seconds if result.event else 0.0
    codes = f" {' '.join(result.codes)}" if result.codes else ""
    head = f"{question.cell.id} {question.layer.name}: {verdict_text(result.judgement)}{codes}"
    return f"{head} ({seconds:.1f} s): {result.summary[:200]}"


@contextmanager
def displayed_progress() -> Iterator[QuietProgress]:
    """Yield the display that suits standard error."""
    if not sys.stderr.isatty():
        yield LineProgress(sys.stderr)
        return
    console = Console(stderr=True, markup=False, highlight=False)
    with console.status("reading the store") as status:
        yield StatusProgress(status)
