"""Says that a command is still at work, where it has said nothing for a while: a line on standard error."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from repro.render import visible

# Seconds of silence: somebody looks at a terminal, and at a log only later.
TERMINAL_S, LOG_S = 8.0, 20.0
_LOOK_S = 1.0


class Silence:
    """How long nothing was said; `look` is to be called once a second or so."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._began = self._last = clock()
        self._after = ""
        self._limit_s = TERMINAL_S if stream.isatty() else LOG_S

    def spoke(self, line: str) -> None:
        """Something was said."""
        self._last, self._after = self._clock(), f", after {visible(line)}"

    def look(self) -> None:
        """Says how long it has taken, where nothing was said for long enough."""
        now = self._clock()
        if now - self._last >= self._limit_s:
            self._last = now
            with contextlib.suppress(OSError, ValueError):
                print(
                    f"repro: at work{self._after}, {now - self._began:.0f} s", file=self._stream, flush=True
                )


_silences: list[Silence] = []


def spoke(line: str) -> None:
    """Something was said by the command that runs."""
    for silence in _silences:
        silence.spoke(line)


@contextlib.contextmanager
def waits() -> Iterator[None]:
    """Has somebody look for as long as the context lasts, unless GRPO_DOCTOR_QUIET is set to anything."""
    if os.environ.get("GRPO_DOCTOR_QUIET"):
        yield
        return
    ended, silence = threading.Event(), Silence(sys.stderr)

    def looks() -> None:
        while not ended.wait(_LOOK_S):
            silence.look()

    looker = threading.Thread(target=looks, name="silence", daemon=True)
    _silences.append(silence)
    looker.start()
    try:
        yield
    finally:
        ended.set()
        looker.join()
        _silences.remove(silence)
