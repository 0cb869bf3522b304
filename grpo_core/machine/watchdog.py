"""Notices a run that stands still, and writes down where."""

from __future__ import annotations

import faulthandler
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Watchdog:
    """Writes the stacks of all threads to a file when nothing was done for a while; ends nothing.

    Python's faulthandler waits and writes without the interpreter, so that a stall inside C++ is seen, too.
    """

    def __init__(self, path: Path, stall_s: float) -> None:
        """Starts watching; 0 seconds watches nothing."""
        self._file = path.open("a", encoding="utf-8") if stall_s else None
        self._stall_s = stall_s

    def beat(self) -> None:
        """Something was done: the wait begins anew."""
        if self._file is not None:
            faulthandler.dump_traceback_later(self._stall_s, file=self._file)

    def close(self) -> None:
        """Stops watching."""
        if self._file is not None:
            faulthandler.cancel_dump_traceback_later()
            self._file.close()
            self._file = None
