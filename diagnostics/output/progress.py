"""Show on standard error that a command is still working.

On a terminal Rich draws a spinner that disappears before other output. Elsewhere one plain line is written after each
20 seconds of silence. GRPO_DOCTOR_QUIET turns both off.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

from diagnostics.output import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.status import Status

SILENCE_S = 20.0
"""Seconds without output after which a line is written where no terminal is."""
DELAY_S = 2.0
"""Seconds before a spinner is drawn, so that short commands draw none."""
QUIET = "GRPO_DOCTOR_QUIET"


class ProgressLine:
    """Prints the progress of a running command: a spinner on a terminal, lines elsewhere."""

    def __init__(self, name: str, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """Start measuring the time.

        Args:
            name: Name of the command.
            stream: Stream to print on.
            clock: Function that returns the time in seconds.
        """
        self._name, self._stream, self._clock = name, stream, clock
        self._step = "running"
        self._began = self._last_output = clock()
        self._lock = threading.RLock()
        self._spinner: Status | None = None
        self._terminal = stream.isatty() and os.environ.get("TERM") != "dumb"

    def update(self, step: str) -> None:
        """Set the current step."""
        with self._lock:
            self._step = step
            if self._spinner is not None:
                self._spinner.update(self._description())

    def clear(self) -> None:
        """Remove the spinner before other output."""
        with self._lock:
            self._last_output = self._clock()
            spinner, self._spinner = self._spinner, None
            if spinner is not None:
                spinner.stop()

    def tick(self) -> None:
        """Draw the spinner or write a line if nothing was written for long enough; called about once a second."""
        with self._lock, contextlib.suppress(OSError, ValueError):  # the reader may have closed the stream
            silence = self._clock() - self._last_output
            if self._terminal and self._spinner is None and silence >= DELAY_S:
                console = sanitize.console(self._stream, redraws=True)
                self._spinner = console.status(self._description(), spinner="line")
                self._spinner.start()
            elif not self._terminal and silence >= SILENCE_S:
                self._last_output = self._clock()
                elapsed = self._clock() - self._began
                self._stream.write(f"{self._description()}, {elapsed:.0f} s\n")
                self._stream.flush()

    def _description(self) -> str:
        return sanitize.escape_line(f"{self._name}: {self._step}")


_current: ProgressLine | None = None


def update(step: str) -> None:
    """Set the current step of the running command; do nothing if no command runs."""
    if _current is not None:
        _current.update(step)


@contextlib.contextmanager
def running(
    name: str, stream: TextIO | None = None, wait: Callable[[threading.Event], bool] | None = None
) -> Iterator[ProgressLine]:
    """Show progress for as long as the context lasts.

    Args:
        name: Name of the command.
        stream: Stream to print on; None for standard error.
        wait: Function that waits until the next tick and returns whether the command has ended.
    """
    global _current
    line = ProgressLine(name, sanitize.unwrap(sys.stderr if stream is None else stream))
    if os.environ.get(QUIET):
        yield line
        return
    ended = threading.Event()
    pause = wait or (lambda event: event.wait(1.0))

    def ticks() -> None:
        while not pause(ended):
            line.tick()

    thread = threading.Thread(target=ticks, name="progress", daemon=True)
    before, _current = _current, line
    sanitize.before_write = line.clear
    thread.start()
    try:
        yield line
    finally:
        ended.set()
        thread.join()
        line.clear()
        sanitize.before_write, _current = None, before
