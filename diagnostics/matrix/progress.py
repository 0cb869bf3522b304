"""Show the progress of a run on standard error: finished layers as lines, the running layer in a status line."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status

from diagnostics.matrix.report import verdict_text
from diagnostics.matrix.results import LayerResult, Question
from diagnostics.output import sanitize
from diagnostics.output.redact import mask


class Progress:
    """Shows finished layers as lines with the elapsed time, and the running layer in a status line on terminals."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console, self._status = console, status
        self._start = time.monotonic()
        self._running = ""

    def started(self, question: Question) -> None:
        """Show which layer runs."""
        self._running = f"{question.cell.id} {question.layer.name}"
        self._status.update(sanitize.escape_line(self._running))
        if not self._console.is_terminal:
            self.note(f"{self._running} …")

    def finished(self, result: LayerResult, remaining: int) -> None:
        """Print a result and the number of remaining layers."""
        question, seconds = result.question, result.event.seconds if result.event else 0.0
        words = (f"{question.cell.id} {question.layer.name}:", verdict_text(result.judgement), *result.codes)
        self.note(f"{' '.join(words)} ({seconds:.1f} s): {result.summary[:200]} ({remaining} open)")

    def show_status(self, text: str) -> None:
        """Display the current action in the status line."""
        self._status.update(f"{self._running}: {sanitize.escape_line(mask(text))}")

    def note(self, text: str) -> None:
        """Print a line."""
        elapsed = time.monotonic() - self._start
        self._console.print(f"[{elapsed:7.1f} s] {sanitize.escape_line(mask(text))}", soft_wrap=True)


@contextmanager
def displayed_progress(*, quiet: bool = False) -> Iterator[Progress]:
    """Yield a Progress that prints on standard error."""
    console = Console(quiet=True) if quiet else sanitize.console(sys.stderr, redraws=True)
    with console.status("reading the store") as status:
        yield Progress(console, status)
