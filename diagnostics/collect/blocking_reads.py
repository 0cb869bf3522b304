"""Read what another process or a dead file system can block, with a time limit.

A read that waits for the lock of another process's memory ends with the reader's process, so a thread may wait for it.
A wait for a page, for the lock of an epoll, or for the server of a file system (FUSE), may outlast SIGKILL, so a child
process waits for it. `read_process_file` reads a file of /proc/PID, and `call_in_child` calls a function in a child
process. Standard library only, because this module is also sent to remote hosts and runs there.
"""

import ast
import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable
from typing import TypeVar, cast

from diagnostics.safe_io import list_folder, read_kernel_file

T = TypeVar("T")
LIMIT_S = 2.0
UNANSWERED: set[int] = set()
"""Processes whose files or memory could not be read in time; what can block is not read again."""
# Files, and a folder of files, for which the kernel takes a lock that the process may hold.
_LOCKED = frozenset({"cmdline", "environ", "fdinfo", "io", "maps", "syscall"})


def list_pids() -> list[int]:
    """Return the ids of the processes in /proc, sorted."""
    return sorted(int(name) for name in list_folder("/proc") if name.isdecimal())


def read_process_file(pid: int, name: str) -> str:
    """Read a file of /proc/PID; empty if it cannot be read, or not in time: the process is then in UNANSWERED."""
    if _LOCKED.isdisjoint(name.split("/")):
        return read_kernel_file(f"/proc/{pid}/{name}")
    return next(iter(read_process_files(pid, [name])), "")


def read_process_files(pid: int, names: list[str]) -> list[str]:
    """Read files of /proc/PID for which the kernel takes a lock, in one thread; those read before the limit.

    Each process that does not answer shortens the limit for the next ones.
    """
    results: list[str] = []
    if pid not in UNANSWERED:
        paths = [f"/proc/{pid}/{name}" for name in names]
        thread = threading.Thread(target=lambda: results.extend(map(read_kernel_file, paths)), daemon=True)
        thread.start()
        thread.join(LIMIT_S / (1 + len(UNANSWERED)))
        if len(results) < len(names):
            UNANSWERED.add(pid)
    return results[:]


def call_in_child(function: Callable[[], T], default: T, pid: int = 0, silent: set[int] = UNANSWERED) -> T:
    """Return the result of a function, a small Python literal, or the default if it raises or needs more than LIMIT_S.

    `pid` is the process that the function reads: after a time-out it is in `silent`, and gives the default at once.
    """
    if pid in silent:
        return default
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            # A child that never ends must not keep our output open.
            os.closerange(0, theirs)
            os.closerange(theirs + 1, 4096)
            os.write(theirs, repr(function()).encode())
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as answer:  # noqa: PTH123 - a descriptor
        if select.select([answer], [], [], LIMIT_S)[0]:
            text = answer.read().decode()
            os.waitpid(child, 0)
            return cast(T, ast.literal_eval(text or repr(default)))
    os.kill(child, signal.SIGKILL)
    silent.update({pid} - {0})
    return default
