"""Limits of CPU time and memory for tests of hostile input."""

import contextlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path


class TooSlowError(BaseException):
    """Raised when the body of `cpu_and_memory_limits` takes too long; no handler for errors catches it."""


@contextlib.contextmanager
def cpu_and_memory_limits(*, seconds: float, mebibytes: int) -> Iterator[None]:
    """Fail if the body takes more CPU time of this process, or more additional memory.

    CPU time, unlike wall time, hardly depends on the load of the machine. Memory is that of new mappings: beyond it the
    body gets a MemoryError.
    """

    def stop(*_: object) -> None:
        raise TooSlowError(f"more than {seconds:g} s of CPU time")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    before = signal.signal(signal.SIGVTALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (mebibytes << 20), hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, before)
