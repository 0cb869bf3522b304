"""Show a spinner with the current step on a terminal while a command is working.

`show_spinner` shows it for a command, `update` sets the step. The spinner is on standard error, appears after DELAY_S,
and is removed for good before other output. GRPO_DOCTOR_QUIET or TERM=dumb turns it off.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, ClassVar, TextIO

from diagnostics.output import sanitize
from diagnostics.output.redact import mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.status import Status
    from rich.text import Text

DELAY_S = 2.0
"""Seconds before the spinner is drawn, so that short commands draw none."""
QUIET = "GRPO_DOCTOR_QUIET"


class Spinner:
    """A line on the terminal with a command's name and its current step, drawn after DELAY_S.

    Attributes:
        current: The spinner of the running command; None if the command has none.
    """

    current: ClassVar[Spinner | None] = None

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name, self._stream, self._step = name, stream, "running"
        self._lock = threading.RLock()
        self._status: Status | None = None
        self._timer = threading.Timer(DELAY_S, self.draw)
        self._timer.daemon = True
        self._timer.start()

    def update(self, step: str) -> None:
        """Set the current step."""
        with self._lock:
            self._step = step
            if self._status is not None:
                self._status.update(self._description())

    def draw(self) -> None:
        """Draw the spinner."""
        with self._lock, contextlib.suppress(OSError, ValueError):  # the reader may have closed the stream
            console = sanitize.console(self._stream, redraws=True)
            self._status = console.status(self._description(), spinner="line")
            self._status.start()

    def clear(self) -> None:
        """Remove the spinner; it is not drawn again."""
        self._timer.cancel()
        with self._lock:
            status, self._status = self._status, None
            if status is not None:
                status.stop()

    def _description(self) -> Text:
        """Return the line: masked, escaped, and not read as Rich's markup."""
        from rich.text import Text

        return Text(sanitize.escape_line(mask(f"{self._name}: {self._step}")))


def update(step: str) -> None:
    """Set the current step of the running command; without a spinner nothing happens."""
    if Spinner.current is not None:
        Spinner.current.update(step)


@contextlib.contextmanager
def show_spinner(name: str, stream: TextIO | None = None) -> Iterator[None]:
    """Show a spinner for a command within the context, if the stream (by default standard error) is a terminal."""
    stream = sanitize.unwrap(stream or sys.stderr)
    if os.environ.get(QUIET) or os.environ.get("TERM") == "dumb" or not stream.isatty():
        yield
        return
    Spinner.current = spinner = Spinner(name, stream)
    sanitize.before_write = spinner.clear
    try:
        yield
    finally:
        spinner.clear()
        sanitize.before_write = Spinner.current = None
