"""Report on standard error that a command is still at work, where it has printed nothing for a while."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

from repro.render import visible

# Seconds of silence: people read a terminal now, and a log only later.
TERMINAL_S, LOG_S = 8.0, 20.0
_last = {"time": 0.0, "line": ""}


def note(line: str) -> None:
    """Note that a line was printed."""
    _last.update(time=time.monotonic(), line=f", after {visible(line)}")


@contextlib.contextmanager
def heartbeat() -> Iterator[None]:
    """Report progress as long as the context lasts, unless GRPO_DOCTOR_QUIET is set to anything."""
    began, ended = time.monotonic(), threading.Event()
    _last.update(time=began, line="")
    limit_s = TERMINAL_S if sys.stderr.isatty() else LOG_S

    def report() -> None:
        while not ended.wait(1.0):
            now = time.monotonic()
            if now - float(_last["time"]) >= limit_s:
                _last["time"] = now
                with contextlib.suppress(OSError, ValueError):
                    print(f"repro: at work{_last['line']}, {now - began:.0f} s", file=sys.stderr, flush=True)

    reporter = threading.Thread(target=report, name="progress", daemon=True)
    if not os.environ.get("GRPO_DOCTOR_QUIET"):
        reporter.start()
    try:
        yield
    finally:
        ended.set()
        if reporter.is_alive():
            reporter.join()
