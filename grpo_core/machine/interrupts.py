"""Ctrl-C, without losing it or tearing a line in two.

Python raises KeyboardInterrupt between any two bytecodes. Raised inside a destructor it vanishes; raised inside
a callback of C++ code (autograd's, say) it comes out as another error. So that it was asked for is remembered.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class Interrupts:
    """Watches for SIGINT while it is open.

    Attributes:
        asked: True once SIGINT came.
    """

    def __init__(self) -> None:
        """Nothing is watched yet."""
        self.asked = False
        self._shielded = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raises KeyboardInterrupt on SIGINT, and remembers; only the main thread can watch."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Lets what it encloses end first; raises behind it, also what got lost before."""
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False
        if self.asked:
            raise KeyboardInterrupt

    def _on_signal(self, *_: Any) -> None:
        self.asked = True
        if not self._shielded:
            raise KeyboardInterrupt
