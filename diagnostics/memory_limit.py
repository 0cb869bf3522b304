"""Limit the memory of a command, so that a small hostile input cannot fill the machine's memory.

`limit_memory` sets the limit, which holds for this process alone: programs are started in `without_limit`.
"""

import contextlib
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

from diagnostics.collect.processors_and_memory import collect_memory

_SHARE = 0.75
_STATM = Path("/proc/self/statm")
# Limits of data (soft, hard) before `limit_memory` and in it, or none; the number of programs that are being started.
_limits: list[tuple[int, int]] = []
_starting = 0
_lock = threading.Lock()


@contextlib.contextmanager
def limit_memory() -> Iterator[None]:
    """Let this process use three quarters of the memory available now, and no more, in the body of a `with` statement.

    An allocation above the limit fails, in Python with a MemoryError. Without /proc (no Linux) there is no limit.
    """
    memory = collect_memory()
    group = None if memory.limit_gb is None else memory.limit_gb - (memory.used_gb or 0)
    free = min((size for size in (memory.available_gb, group) if size is not None), default=None)
    if free is None or not _STATM.exists():
        yield
        return
    used = int(_STATM.read_text(encoding="ascii").split()[5]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = (used + int(_SHARE * max(free, 0) * 1e9), soft, hard)
    limit = min(size for size in limits if size != resource.RLIM_INFINITY)
    _limits[:] = (soft, hard), (limit, hard)
    _count_starts(0)
    try:
        yield
    finally:
        _limits.pop()
        _count_starts(0)
        _limits.clear()


@contextlib.contextmanager
def without_limit() -> Iterator[None]:
    """Give this process the limit that it had before `limit_memory`, because a program that it starts inherits it.

    A limit that is changed from outside after the start does not reach what the program has started, or another user.
    """
    _count_starts(1)
    try:
        yield
    finally:
        _count_starts(-1)


def _count_starts(change: int) -> None:
    """Change the number of programs that are being started, in several threads, and set the limit that holds then."""
    global _starting  # noqa: PLW0603 - one limit for the whole process
    with _lock:
        _starting += change
        if _limits:
            resource.setrlimit(resource.RLIMIT_DATA, _limits[0 if _starting else -1])
