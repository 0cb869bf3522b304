"""Ctrl-C where no command is there to take it: it ends the process as the signal does, and nothing is said.

Loaded before all else, so it rests on next to nothing.
"""

from __future__ import annotations

import signal


def untaken() -> None:
    """From here on: while a program imports its parts nothing is there to be put in order, and no traceback helps.

    Where whoever started us has it ignored, it stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


class Taken:
    """A context in which it is KeyboardInterrupt, where it was untaken before."""

    def __enter__(self) -> None:
        """The command begins."""
        self._untaken = signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        if self._untaken:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def __exit__(self, *_: object) -> None:
        """All that the command started is ended."""
        if self._untaken:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
