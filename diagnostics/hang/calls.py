"""What a thread waits for by the system call that it is in, or by the call on its line of source."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diagnostics.hang.snapshot import Process, StackFrame, Thread

# What a call says that has no frame.
_CALLED = {
    "input": "input", "getpass": "input", "acquire": "lock", "join": "join", "sleep": "sleep", "flock": "file_lock",
    "lockf": "file_lock", "waitpid": "child", "recv": "socket", "recvfrom": "socket", "recv_into": "socket",
    "accept": "socket", "connect": "connect", "barrier": "collective", "select": "loop",
}  # fmt: skip
# The same of a dump, where the innermost frame may be a function around such a call, and no system call tells.
_WRAPPED = ("acquire", "recv", "recv_into", "recvfrom", "getpass", "flock", "lockf", "waitpid")
# What a child flushes that a fork made: a thread of its parent had the stream's lock at that moment.
_FLUSHED = "_flush_std_streams"
_SOCKETS = re.compile(r"(?:^|.*/)(?:socket|ssl)\.py$")
_READS = ("readinto", "read", "recv", "recv_into", "recvfrom")
# Calls by which a rank waits for its device or for work that it began: the collective itself has no frame.
_COPIES = ("item", "tolist", "cpu", "synchronize")
_DEVICE = ("wait", "barrier", *_COPIES)
_ASKS = ("read", "poll", "ppoll", "select", "pselect6")
# System calls that say it all.
_SAY = {
    "connect": "connect", "flock": "file_lock", "fcntl lock": "file_lock", "wait4": "child", "waitid": "child",
    "nanosleep": "sleep", "clock_nanosleep": "sleep",
}  # fmt: skip


def kind(process: Process, thread: Thread, frame: StackFrame | None) -> str:
    """What a thread is in, by its system call, with the call in the source's line where that is known."""
    call = thread.syscall
    kinds = {d.kind for d in process.fds if d.fd in thread.waits_fds}
    said = (_CALLED.get(frame.calls, "") or _wrapped(thread, frame)) if frame else ""
    asks = call in _ASKS and 0 in thread.waits_fds
    told = (
        ("input", asks and (call == "read" or said == "input" or "tty" in kinds)),
        (_SAY.get(call, ""), call in _SAY),
        ("pipe_full", "pipe" in kinds and call in ("write", "writev")),
        ("pipe", "pipe" in kinds),
        ("loop", call.startswith("epoll")),
        ("device", frame is not None and frame.calls in _COPIES and unwatched(thread)),
        ("socket", bool(kinds & {"tcp", "unix", "socket"})),
        (_at_futex(process, thread, frame, said), call == "futex"),
    )
    return next((kind for kind, holds in told if holds), said or "native")


def unwatched(thread: Thread) -> bool:
    """Whether nothing of the thread was seen but its stack."""
    return not thread.syscall and not thread.wchan and thread.runnable is None


def _wrapped(thread: Thread, frame: StackFrame) -> str:
    """What the function itself is called, where nothing else was seen of the thread."""
    if not unwatched(thread):
        return ""
    if _SOCKETS.match(frame.path):
        return "socket" if frame.function in _READS else ""
    if frame.function == _FLUSHED and any("popen_fork" in one.path for one in thread.frames):
        return "lock"
    return _CALLED[frame.function] if frame.function in _WRAPPED else ""


def _at_futex(process: Process, thread: Thread, frame: StackFrame | None, said: str) -> str:
    """What a futex is for: a semaphore of many processes, a collective's end asked for in C++, or a lock."""
    if thread.futex.startswith("sem:"):
        return "processes_lock"
    if frame and frame.calls in _DEVICE and process.rank is not None:
        return "collective"
    if frame and frame.calls in ("get", "wait", "result"):
        return {"get": "queue", "result": "future"}.get(frame.calls, "event")
    return said or ("lock" if frame else "native")
