"""Shows a run while it goes, on standard error: a table that fills in, or one line an event."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TextIO

from diagnostics import door
from diagnostics.matrix.report import words
from diagnostics.output import pulse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diagnostics.matrix.run.board import Board, Question, Square
    from diagnostics.matrix.run.progress import Progress


class Lines:
    """One plain line an event."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started = time.monotonic()

    def started(self, item: Question, now: Board, where: str = "") -> None:
        """Says which question is being asked, and where."""
        del now
        pulse.asking(f"{item.cell.id} {item.layer.name}")
        self._line(f"{where and f'on {where}: '}{item.cell.id} {item.layer.name} …")

    def finished(self, square: Square | None, now: Board) -> None:
        """Says the verdict and how much is left."""
        if square is None:
            return
        left = sum(1 for other in now.squares if other.event is None)
        item, seconds = square.question, square.event.seconds if square.event else 0.0
        word = words.word(square.judged)
        codes = f" {' '.join(square.codes)}" if square.codes else ""
        self._line(
            f"{item.cell.id} {item.layer.name}: {word}{codes} ({seconds:.1f} s, {left} open): "
            f"{square.summary[:200]}"
        )

    def say(self, text: str) -> None:
        """Keeps it for the line that says how long it has taken: lines are for events."""
        pulse.doing(text)

    def note(self, text: str) -> None:
        """Says it."""
        self._line(text)

    def _line(self, text: str) -> None:
        print(f"[{time.monotonic() - self._started:7.1f} s] {text}", file=self._stream, flush=True)


@dataclass(frozen=True)
class _Doing:
    """A question that is being asked."""

    item: Question
    where: str
    since: float

    def line(self, action: str) -> str:
        seconds = time.monotonic() - self.since
        doing = action or (f"on {self.where}" if self.where else "asking")
        return f"{self.item.cell.id} {self.item.layer.name}: {doing} ({seconds:.0f} s)"


class Live:
    """A table of cells by layers that fills in, with the current action and its time above."""

    def __init__(self, stream: TextIO) -> None:
        from rich.live import Live as RichLive

        self._console = door.console(stream)
        self._live = RichLive(self, console=self._console, refresh_per_second=4, transient=True)
        self._lock = threading.Lock()
        self._board: Board | None = None
        self._doing: dict[tuple[str, str], _Doing] = {}
        self._action = ""
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def started(self, item: Question, now: Board, where: str = "") -> None:
        """Marks the square that is being asked."""
        with self._lock:
            self._board, self._action = now, ""
            self._doing[item.cell.id, item.layer.name] = _Doing(item, where, time.monotonic())

    def finished(self, square: Square | None, now: Board) -> None:
        """Fills it in."""
        with self._lock:
            self._board = now
            if square is not None:
                self._doing.pop((square.question.cell.id, square.question.layer.name), None)
        if square is not None and not square.judged.expected:
            head = f"{square.question.cell.id} {square.question.layer.name}: {words.word(square.judged)}"
            self.note(f"{head}: {square.summary[:300]}")

    def say(self, text: str) -> None:
        """Shows the current action."""
        with self._lock:
            self._action = text

    def note(self, text: str) -> None:
        """Prints above the table."""
        self._console.print(text, style="yellow", markup=False, highlight=False)

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        from diagnostics.matrix.report.table import blocks, table

        with self._lock:
            now, action, doing = self._board, self._action, list(self._doing.values())
            total = time.monotonic() - self._began
        if now is None:
            return Text("reading the store …", style="dim")
        lines = [one.line(action if one is doing[-1] and not one.where else "") for one in doing]
        current = doing[-1].item if doing else None
        # One lot of columns fits: that of the question.
        lots = blocks(now.layers, self._console.width)
        lot = next((lot for lot in lots if current and current.layer.name in lot), lots[0] if lots else [])
        return Group(
            # First, since of a table that is longer than the screen the end is not shown.
            Text("\n".join([*lines, f"{total:.0f} s in all"]), style="bold"),
            table(now, current=current, live=True, layers=lot),
        )


@contextmanager
def shown(stream: TextIO | None = None) -> Iterator[Progress]:
    """Yields the progress display that suits the stream."""
    stream = stream or sys.stderr
    if stream.isatty():
        with Live(stream) as live:
            yield live
    else:
        with pulse.beating("matrix", stream):
            yield Lines(stream)
