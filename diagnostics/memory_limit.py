"""Limit the memory of a command, so that a small hostile input cannot fill the machine's memory.

`limit_memory` sets the limit. Programs inherit it, so `process.start` calls `restore_limit` for what it starts.
"""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

from diagnostics.collect.processors_and_memory import collect_memory

_SHARE = 0.75
_STATM = Path("/proc/self/statm")
# The limits (soft, hard) from before `limit_memory`, in its body.
_limits_before: list[tuple[int, int]] = []


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
    _limits_before.append((soft, hard))
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, _limits_before.pop())


def restore_limit(pid: int) -> None:
    """Give a program that this process started the limit from before `limit_memory`; not if it runs as another user."""
    if _limits_before:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            resource.prlimit(pid, resource.RLIMIT_DATA, _limits_before[-1])
