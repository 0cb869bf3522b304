"""Processes that leave nothing behind: they die with the one that started them, and take what they started along."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


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


def adopt_orphans() -> None:
    """Has the kernel give this process whatever its descendants leave behind, also what left their group or session.

    Linux alone offers this; elsewhere nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_descendants() -> None:
    """Kills everything that this process started, directly or not, and waits until all of it is gone.

    After `adopt_orphans` nothing can escape: what loses its parent becomes a child of this process.
    """
    while True:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def descendants(ancestor: int) -> list[int]:
    """Returns the processes below one, as far as /proc tells."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name stands in brackets and may itself hold any; state and parent follow it.
            parent = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    result = list(children.get(ancestor, []))
    for pid in result:  # it grows while it is read
        result += children.get(pid, [])
    return result


def how_it_ended(code: int) -> str:
    """Names an exit code, or the signal behind a negative one."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
