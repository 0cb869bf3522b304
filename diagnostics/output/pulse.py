"""Says that a command is still at work, where it has said nothing for a while: on standard error.

On a terminal a line is drawn each second and taken away before anything else is written; elsewhere it is a plain line
well within each half minute. Whatever passes the door out counts as a sign of life, so that no command needs to know.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from diagnostics import door

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

# Seconds of silence after which something is said: drawn at a terminal, written elsewhere.
DRAWN_S, WRITTEN_S = 2.0, 20.0
# Set to anything, nothing is said.
QUIET = "GRPO_DOCTOR_QUIET"
_LOOK_S = 1.0


class Pulse:
    """What is said of a command that is silent; `look` is to be called once a second or so."""

    def __init__(self, name: str, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing was said yet.

        Args:
            name: Of the command.
            stream: Where it goes.
            clock: Says the time in seconds.
        """
        self._stream, self._clock = stream, clock
        self._doing, self._name = "at work", name
        self._began = self._last = clock()
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = False
        self._lock = threading.RLock()

    def doing(self, text: str) -> None:
        """What it does from here on."""
        self._doing = text

    def spoke(self) -> None:
        """Something else is about to be written: what was drawn gives way to it."""
        with self._lock:
            self._last = self._clock()
            if self._drawn:
                self._drawn = False
                self._write("\r\x1b[K")

    def look(self) -> None:
        """Says something, where nothing was said for long enough."""
        with self._lock:
            now = self._clock()
            silent = now - self._last
            told = f"{self._name}: {self._doing}, {now - self._began:.0f} s"
            if self._live and silent >= DRAWN_S:
                self._drawn = True
                self._write(f"\r\x1b[K{door.line(told)[: self._columns() - 1]}")
            elif not self._live and silent >= WRITTEN_S:
                self._last = now
                self._write(f"{door.line(told)}\n")

    def _write(self, text: str) -> None:
        # Whoever read it may be gone: that is no reason to end.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except (OSError, ValueError):
            return 80


_now: Pulse | None = None


def doing(text: str) -> None:
    """What the command that runs does from here on; nothing where nobody is told."""
    if _now is not None:
        _now.doing(text)


def reading(name: str) -> None:
    """It reads a file."""
    doing(f"reading {name}")


def asking(what: str) -> None:
    """It asks a question, or hosts."""
    doing(f"asking {what}")


@contextlib.contextmanager
def beating(
    name: str, stream: TextIO | None = None, wait: Callable[[threading.Event], bool] | None = None
) -> Iterator[Pulse]:
    """Has somebody look for as long as the context lasts.

    Args:
        name: Of the command.
        stream: Where it goes; None for standard error.
        wait: Waits until the next look, and says whether it was the last.
    """
    global _now
    pulse = Pulse(name, door.behind(sys.stderr if stream is None else stream))
    if os.environ.get(QUIET):
        yield pulse
        return
    ended = threading.Event()
    paused = wait or (lambda event: event.wait(_LOOK_S))

    def looks() -> None:
        while not paused(ended):
            pulse.look()

    looker = threading.Thread(target=looks, name="pulse", daemon=True)
    before, _now = _now, pulse
    door.before_words = pulse.spoke
    looker.start()
    try:
        yield pulse
    finally:
        ended.set()
        looker.join()
        pulse.spoke()
        door.before_words, _now = None, before
