"""Limit the memory of a command, so that a small hostile input cannot fill the machine's memory.

`limit_memory` sets the limit. Programs inherit it, so `process.start` starts them in the body of `without_limit`.
"""

import contextlib
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

from diagnostics.collect.processors_and_memory import collect_memory

_SHARE = 0.75
_STATM = Path("/proc/self/statm")
# In the body of `limit_memory`: the limits (soft, hard) from before it, and its own.
_limits: list[tuple[tuple[int, int], tuple[int, int]]] = []
_changing = threading.Lock()


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
    _limits.append(((soft, hard), (limit, hard)))
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, _limits.pop()[0])


@contextlib.contextmanager
def without_limit() -> Iterator[None]:
    """Give this process the limit from before `limit_memory` in the body, in which it starts a program.

    The program must inherit it: what it forks, and a program of another user, cannot be given a limit later.
    """
    with _changing:
        before, own = _limits[-1] if _limits else ((0, 0), (0, 0))
        if _limits:
            resource.setrlimit(resource.RLIMIT_DATA, before)
        try:
            yield
        finally:
            if _limits:
                resource.setrlimit(resource.RLIMIT_DATA, own)
