"""Processes that leave nothing behind: they die with the one that started them, and take what they started along."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int, number: signal.Signals) -> None:
    """Has the kernel send this process a signal when its parent ends, even if that is killed.

    Linux alone offers this; elsewhere nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:  # it ended before the kernel knew
        os._exit(1)


def kill_group(leader: int) -> None:
    """Kills what is left of a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def how_it_ended(code: int) -> str:
    """Names an exit code, or the signal behind a negative one."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
