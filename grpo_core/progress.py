"""Print a run's progress on standard error: lines of metrics, and every 20 s a note while a step is slow."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

# Seconds without output after which a line reports the running step; seconds between two checks.
_QUIET_S, _CHECK_S = 20.0, 1.0


class StepProgress:
    """Progress lines for about twenty steps of a run; call it with the metrics of every step."""

    def __init__(
        self, steps: int = 0, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Set up the output; nothing is printed yet.

        Args:
            steps: Number of steps of the whole run; 0: `start` sets it.
            stream: None: standard error.
            clock: Returns the time in seconds.
        """
        self._steps, self._stream, self._clock = steps, stream or sys.stderr, clock
        self._last: Mapping[str, Any] | None = None
        self._printed = 0
        self._stepped = self._wrote = clock()
        self._lock = threading.RLock()

    def start(self, steps: int) -> None:
        """Set the number of steps of the whole run."""
        self._steps = steps

    def __call__(self, entry: Mapping[str, Any]) -> None:
        """Record a step's metrics, and print them for the first, the last and about twenty steps between."""
        with self._lock:
            self._last, self._stepped, step = entry, self._clock(), entry["step"]
            if step in (1, self._steps) or step % max(self._steps // 20, 1) == 0:
                self._print_step(entry)

    def check(self) -> None:
        """Print how long the running step has taken, if nothing was printed for a while."""
        with self._lock:
            now = self._clock()
            if now - self._wrote < _QUIET_S:
                return
            step = self._last["step"] + 1 if self._last else 1
            name = "ending" if step > self._steps else f"step {step}/{self._steps}"
            if not self._steps:
                name = "starting"
            self._write(f"{name}: running for {now - self._stepped:.0f} s")

    def close(self) -> None:
        """Print the last step, if it was left out."""
        if self._last is not None and self._last["step"] != self._printed:
            self._print_step(self._last)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Check every second, unless GRPO_DOCTOR_QUIET is set; print the last step at the end."""
        ended = threading.Event()

        def check_until_end() -> None:
            while not ended.wait(_CHECK_S):
                self.check()

        checker = threading.Thread(target=check_until_end, name="progress", daemon=True)
        if not os.environ.get("GRPO_DOCTOR_QUIET"):
            checker.start()
        try:
            yield
        finally:
            ended.set()
            if checker.ident is not None:
                checker.join()
            self.close()

    def _print_step(self, entry: Mapping[str, Any]) -> None:
        self._printed = entry["step"]
        self._write(
            f"step {entry['step']}/{self._steps}  reward {entry['reward/mean']:.3f}  loss {entry['loss']:+.4f}  "
            f"entropy {entry['entropy']:.2f}  staleness {entry['staleness/max']}  {entry['time/step_s']:.2f} s"
        )

    def _write(self, line: str) -> None:
        self._wrote = self._clock()
        self._stream.write(line + "\n")
        self._stream.flush()
