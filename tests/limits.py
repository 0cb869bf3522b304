"""Limit CPU time and memory in tests of hostile input, and the size of files in tests of a full disk."""

import contextlib
import resource
import signal
import tracemalloc
from collections.abc import Iterator
from pathlib import Path


class TooSlowError(BaseException):
    """Raised when the body of `cpu_and_memory_limits` takes too long; no handler for errors catches it."""


@contextlib.contextmanager
def cpu_and_memory_limits(*, seconds: float, mebibytes: int) -> Iterator[None]:
    """Fail if the body takes more CPU time in this process's own code (user time), or more additional memory.

    CPU time, unlike wall time, hardly depends on the load of the machine. At twice the memory the body gets a
    MemoryError, so that a failing test does not take the machine's memory.
    """

    def stop(*_: object) -> None:
        raise TooSlowError(f"more than {seconds:g} s of CPU time")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    mapped, resident, *_ = map(int, Path("/proc/self/statm").read_text(encoding="ascii").split())
    page = resource.getpagesize()
    before = max(resident * page, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
    previous = signal.signal(signal.SIGVTALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (mapped * page + (2 * mebibytes << 20), hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, previous)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before
    assert grown <= mebibytes << 20, f"{grown >> 20} MiB more memory"


@contextlib.contextmanager
def allocation_limit(most_bytes: float) -> Iterator[None]:
    """Fail if the objects that Python allocates in the body take more bytes at one time."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most_bytes, f"{peak} bytes"


@contextlib.contextmanager
def file_size_limit(most_bytes: int) -> Iterator[None]:
    """Limit the size of files to simulate a full disk; the error is then 'File too large'."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
