"""Classify what a thread blocks on: by its Python and native frames, else by the system call it is in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from diagnostics.frameworks import TOP_MODULES
from diagnostics.hang import blocking_call_table
from diagnostics.hang.snapshot import NATIVE, Process, StackFrame, Thread
from diagnostics.output.redact import redact_path

KINDS = {
    "collective": "waits in a collective",
    "rendezvous": "waits for other ranks at the rendezvous",
    "ray": "waits for a result from Ray",
    "ring_read": "waits for a message in the engine's ring buffer",
    "ring_write": "waits for room in the engine's ring buffer",
    "file_lock": "waits for a file lock",
    "data_loader": "waits for a data loader worker",
    "input": "waits for input",
    "http": "waits for an HTTP response",
    "socket": "waits for data on a socket",
    "connect": "waits for a connection to be accepted",
    "rpc": "waits for the result of a remote call",
    "device": "waits for its device",
    "threads": "waits for threads of a native pool",
    "child": "waits for a child process",
    "pool": "waits for a pool's result",
    "future": "waits for a future's result",
    "join": "waits for another thread",
    "queue": "waits for an item in a queue of its own",
    "queue_full": "waits for room in a queue of its own",
    "processes_queue": "waits for an item in a queue between processes",
    "pipe": "waits for data in a pipe",
    "pipe_full": "waits for room in a pipe",
    "processes_lock": "waits for a lock shared between processes",
    "lock": "waits for a lock",
    "event": "waits for an event",
    "sleep": "sleeps and polls",
    "start": "waits until a process or thread that it started is ready",
    "loop": "is idle in its event loop",
    "idle": "is idle",
    "listen": "waits for connections",
    "supervise": "supervises its children",
    "compile": "compiles",
    "load": "loads",
    "import": "imports modules",
    "symbolic": "computes a symbolic expression",
    "regex": "matches a regular expression",
    "compute": "computes",
    "native": "is in native code",
    "file": "waits for a file operation",
    "kernel": "is in the kernel, where no signal reaches it",
    "stopped": "is stopped",
    "dead": "is dead",
    "between": "is between collectives",
    "unseen": "could not be inspected",
}
"""What a thread can be in, and how a sentence says it."""
COMPUTING = ("compile", "load", "import", "symbolic", "regex", "compute")
IDLE = ("loop", "idle", "supervise", "listen")


@dataclass(frozen=True)
class BlockingCall:
    """The call that blocks a thread.

    Attributes:
        kind: One of KINDS.
        frame: The frame that shows it; None if only a system call does.
        operation: Name of a collective.
        caller: The first frame outside libraries.
        detail: A kernel function, a system call with the file it opens, a semaphore.
    """

    kind: str
    frame: StackFrame | None = None
    operation: str = ""
    caller: StackFrame | None = None
    detail: str = ""


_TABLE = tuple(
    (kind, re.compile(rf"(?:^|.*/)(?:{path})$"), re.compile(rf"(?:{names})$"))
    for kind, path, names in blocking_call_table.ROWS
)
# Library frames below which the caller decides whether a thread is idle.
_MACHINERY = re.compile(
    r"(?:^|.*/)(?:threading|queue|selectors|socket|ssl|contextlib|functools|_weakrefset)\.py$"
    r"|(?:^|.*/)(?:multiprocessing/(?:connection|queues|synchronize)|concurrent/futures/_base|c10d_logger"
    r"|shm_broadcast)\.py$"
    r"|(?:^|.*/)(?:zmq|asyncio|redis)/.*|(?:^|.*/)(?:select|_?socket|_?thread)module\.c(?:\.h)?$"
    r"|(?:^|.*/)(?:lib(?:c|pthread|zmq|stdc\+\+|python[\d.]*)(?:-[\d.]+)?\.so[.\d]*|python[\d.]*)$"
)
_SIDE_SERVICE = re.compile(rf"(?:^|.*/){blocking_call_table.SIDE_SERVICES}")
_IDLE_FRAMES = tuple(
    (re.compile(rf"(?:^|.*/)(?:{path})$"), re.compile(rf"(?:{names})$"))
    for path, names in blocking_call_table.IDLE_FRAMES
)
# Ray's core loop only polls, and on a busy machine seems to compute.
_RAY_LOOP = re.compile(r"(?:^|.*/)ray/(?:_private/)?worker\.py:main_loop$")
_THREADING = re.compile(r"(?:^|.*/)threading\.py$")
LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64|32)?/python\d[.\d]*/|^<frozen|^<string>"
    # As py-spy's text shortens paths: from the folder of packages on.
    rf"|^(?:{'|'.join(TOP_MODULES)}|{blocking_call_table.LIBRARIES})/"
    r"|^(?:threading|queue|selectors|socket|ssl|subprocess|contextlib|functools|runpy|socketserver)\.py$"
    r"|\.so[.\d]*$|\.(?:dylib|dll|pyd)$|\.(?:cpp|cc|cu|c|h|S|pyx)$|^\[native\]$|(?:^|/)python[\d.]*$"
)
# Waits that may spin.
_SPINNING = ("collective", "rendezvous", "ring_read", "ring_write", "device", "threads")
# Kinds that are more specific than the event, selector or pipe inside them.
_SPECIFIC = (
    "queue", "queue_full", "future", "join", "pool", "processes_queue", "data_loader", "start", "supervise", "child",
    "ray", "ring_read", "ring_write", "rendezvous", "collective", "file_lock", "pipe_full",
)  # fmt: skip
# Kinds that may be the means of a more specific one further out.
_UNSPECIFIC = ("event", "loop", "pipe", "http", "lock", "socket", "device")
# Native waits that count only if Python code called them.
_NEEDS_PYTHON_CALLER = ("device", "threads")
_DRIVER = re.compile(r"(?:^|/)lib(?:cuda(?!rt)\w*|hsa\S*|c|pthread)(?:-[\d.]+)?\.so")
_PROGRAM_CALLS = re.compile(
    r"(?:cu|cuda|hip)[A-Z]\w*(?:Synchronize|Memcpy)\w*|(?:\w+::)*\w+Signal::WaitRelaxed"
)
_THREAD_START = ("??", "start_thread", "clone", "clone3")
_PYTHON_FRAME = re.compile(r"\.pyx? |\b_?Py(?:Eval|Object|Run|C?Function|Thread|UFunc|Array)|\bPy_")
_FORK_FRAME = re.compile(
    r"gunicorn/arbiter\.py:spawn_worker$|multiprocess(?:ing)?/popen_fork\.py:|os\.py:fork$"
)
_RELEASE_FRAME = re.compile(r"(?:threading|logging/__init__)\.py:(?:_release_save|release|_releaseLock)$")
_LOG_WRITES = ("emit", "flush", "handle", "_acquireLock", "acquire")
# The kind of a blocking C function named in the innermost source line.
_KIND_OF_CALL = {
    "input": "input", "getpass": "input", "acquire": "lock", "join": "join", "sleep": "sleep", "flock": "file_lock",
    "lockf": "file_lock", "waitpid": "child", "recv": "socket", "recvfrom": "socket", "recv_into": "socket",
    "accept": "listen", "connect": "connect", "barrier": "collective", "select": "loop",
}  # fmt: skip
# The same for a function's own name in a dump, where no system call is known.
_KIND_OF_FUNCTION = ("acquire", "recv", "recv_into", "recvfrom", "getpass", "flock", "lockf", "waitpid")
_SOCKET_MODULE = re.compile(r"(?:^|.*/)(?:socket|ssl)\.py$")
_SOCKET_READS = ("readinto", "read", "recv", "recv_into", "recvfrom")
_DEVICE_COPIES = ("item", "tolist", "cpu", "synchronize")
DEVICE_CALLS = ("wait", "barrier", *_DEVICE_COPIES)
"""Calls by which a rank waits for its device or for a collective it started."""
_READING_SYSCALLS = ("read", "poll", "ppoll", "select", "pselect6")
_KIND_OF_SYSCALL = {
    "connect": "connect", "flock": "file_lock", "fcntl lock": "file_lock", "wait4": "child", "waitid": "child",
    "nanosleep": "sleep", "clock_nanosleep": "sleep", "accept": "listen", "accept4": "listen", "pause": "idle",
    "rt_sigsuspend": "idle", "rt_sigtimedwait": "idle",
}  # fmt: skip
_FILE_SYSCALLS = {
    "open", "openat", "openat2", "creat", "stat", "lstat", "fstat", "newfstatat", "statx", "access", "faccessat",
    "faccessat2", "getdents", "getdents64", "unlink", "unlinkat", "rename", "renameat2", "mkdir", "mkdirat", "readlink",
    "readlinkat", "fsync", "fdatasync", "statfs", "truncate", "ftruncate", "close", "pread64", "pwrite64", "sendfile",
    "copy_file_range", "mmap", "msync", "execve",
}  # fmt: skip
_FILE_CHANNEL = re.compile(r"fuse_|request_wait_answer|nfs\d?_|rpc_wait|ceph_|cifs_|ptlrpc|ldlm_|gpfs|beegfs")
# Programs that wait for input by design.
_FILTERS = re.compile(
    r"(?:^|/)(?:tail|tee|cat|head|grep|egrep|sed|g?awk|mawk|less|more|ts|xargs|sort|uniq|logger|rotatelogs|multilog|"
    r"stdbuf|inotifywait|sh|bash|dash|zsh|fish|tmux|screen|script|ssh|sshd)$"
)


def frame_text(frame: StackFrame) -> str:
    """Return a frame as "get (queue.py:171)"."""
    if not frame.path:
        return frame.function
    path = short_path(frame.path)
    return f"{frame.function} ({path}:{frame.line})" if frame.line else f"{frame.function} ({path})"


@lru_cache(maxsize=4096)
def short_path(path: str) -> str:
    """Return a path from the last folder of packages on, or its last three parts.

    >>> short_path("/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py")
    'torch/distributed/distributed_c10d.py'
    """
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in path:
            return path.rpartition(mark)[2]
    parts = redact_path(path).split("/")  # before the part that shows a user's name is cut off
    if len(parts) > 2 and parts[-2].startswith("python3."):
        return parts[-1]
    if len(parts) > 3 and parts[-3].startswith("python3."):
        return "/".join(parts[-2:])
    return "/".join(parts[-3:]).lstrip("/")


@lru_cache(maxsize=4096)
def kinds_of_frame(path: str, function: str) -> tuple[str, ...]:
    """Return what a frame waits for, the first row of the table first.

    >>> kinds_of_frame("/usr/lib/python3.12/queue.py", "get")
    ('queue',)
    """
    return tuple(kind for kind, paths, names in _TABLE if names.match(function) and paths.match(path))


def classify_thread(process: Process, thread: Thread) -> BlockingCall:  # noqa: PLR0911
    """Return what a thread is in."""
    caller = next((frame for frame in thread.frames if not LIBRARY.search(frame.path)), None)
    if process.state in ("Z", "X"):
        return BlockingCall("dead", caller=caller)
    if {"T", "t"} & {process.state, thread.state}:
        return BlockingCall("stopped", caller=caller)
    if _FILE_CHANNEL.match(thread.wchan) and thread.syscall != "poll":
        where = f"{thread.syscall or 'a system call'} in {thread.wchan}"
        return BlockingCall("kernel" if thread.state == "D" else "file", caller=caller, detail=where)
    if thread.state == "D":
        return BlockingCall("kernel", caller=caller, detail=thread.wchan)
    if not thread.frames:
        return _without_stack(process, thread)
    call = _lock_on_entry(thread, caller) or _by_frames(process, thread, caller)
    if _computes(thread, call):
        return BlockingCall("import" if _imports(thread) else "compute", thread.frames[0], caller=caller)
    return call or _by_syscall(process, thread, caller)


def _without_stack(process: Process, thread: Thread) -> BlockingCall:
    if (
        not process.python
        and _FILTERS.search(process.title.split(" ")[0])
        and thread.syscall not in _CHILD_WAITS
    ):
        return BlockingCall("pipe_full" if thread.syscall in ("write", "writev") else "idle")
    if thread.busy and thread.runnable is not None:
        return BlockingCall("compute")  # in native code, as a process that ends
    return _by_syscall(process, thread, None) if thread.syscall or thread.wchan else BlockingCall("unseen")


_CHILD_WAITS = ("wait4", "waitid")


def _lock_on_entry(thread: Thread, caller: StackFrame | None) -> BlockingCall | None:
    """Return the lock that a thread is about to take: nothing behind it has begun."""
    inner = thread.frames[0]
    enters = inner.function == "__enter__" and _THREADING.match(inner.path)
    return BlockingCall("lock", inner, caller=caller) if enters or _writes_after_fork(thread) else None


def _writes_after_fork(thread: Thread) -> bool:
    """Return whether it writes to a log or stream whose lock a fork copied, or while it releases a lock."""
    inner = thread.frames[0]
    logs = inner.path.endswith("logging/__init__.py") and inner.function in _LOG_WRITES
    flushes = inner.path == NATIVE and inner.function in ("flush", "write")
    if not thread.stack_only or not (logs or flushes):
        return False
    return is_forked(thread) or (
        logs and any(_RELEASE_FRAME.search(f"{frame.path}:{frame.function}") for frame in thread.frames)
    )


def is_forked(thread: Thread) -> bool:
    """Return whether a thread's stack begins in a fork of a Python process."""
    return any(_FORK_FRAME.search(f"{frame.path}:{frame.function}") for frame in thread.frames)


def _computes(thread: Thread, call: BlockingCall | None) -> bool:
    """Return whether a thread computes and therefore does not wait."""
    if not thread.busy or (call and call.kind in (*_SPINNING, *COMPUTING)):
        return False
    if _RAY_LOOP.match(f"{thread.frames[0].path}:{thread.frames[0].function}"):
        return False
    # Without counters a stack tool guessed it from one sample: a wait with a name is more reliable.
    return call is None or thread.runnable is not None or thread.gil


def _by_frames(process: Process, thread: Thread, caller: StackFrame | None) -> BlockingCall | None:
    if idle := _idle_kind(thread, caller):
        return BlockingCall(idle, thread.frames[0], caller=caller)
    call: BlockingCall | None = None
    for frame in thread.frames:
        for kind in kinds_of_frame(frame.path, frame.function):
            if not _counts(thread, call, kind):
                continue
            call = BlockingCall(kind, frame, frame.function if kind == "collective" else "", caller)
            if kind not in _UNSPECIFIC:
                return _refine(process, thread, call)
            break
        if not _MACHINERY.match(frame.path) and not LIBRARY.search(frame.path):
            break  # user code: the outer frames called it and do not show its blocking call
    if call:
        return _refine(process, thread, call)
    if _imports(thread) and (thread.busy or thread.runnable is None):
        return BlockingCall("import", thread.frames[0], caller=caller)
    return None


def _counts(thread: Thread, inner: BlockingCall | None, kind: str) -> bool:
    """Return whether a frame's kind is more specific than that of the inner frames."""
    if kind in _NEEDS_PYTHON_CALLER and _is_librarys_own(thread, kind):
        return False
    if kind in COMPUTING and not thread.busy and thread.runnable is not None:
        return False
    if inner is None:
        return True
    if (inner.kind, kind) == ("lock", "event") or (
        (inner.kind, kind) == ("loop", "pipe") and not thread.syscall
    ):
        return True
    return kind in (("rendezvous", "collective") if inner.kind == "device" else _SPECIFIC)


def _is_librarys_own(thread: Thread, kind: str) -> bool:
    """Return whether it is a driver's own thread or one of a native pool: those rest there."""
    if kind == "threads":
        return not any(_PYTHON_FRAME.search(f"{frame.path} {frame.function}") for frame in thread.frames)
    if any(_PROGRAM_CALLS.fullmatch(frame.function) for frame in thread.frames):
        return False
    return all(_DRIVER.search(frame.path) or frame.function in _THREAD_START for frame in thread.frames)


def _refine(process: Process, thread: Thread, call: BlockingCall) -> BlockingCall:
    """Add details from the system call."""
    caller = call.caller
    if call.kind in ("socket", "pipe", "loop", "http") and thread.syscall in ("accept", "accept4"):
        return BlockingCall("listen", call.frame, caller=caller)
    if call.kind == "socket" and all(_MACHINERY.match(frame.path) for frame in thread.frames):
        # A stack cut off before the caller: it may be an idle listener.
        return BlockingCall("unseen", call.frame, caller=caller)
    if call.kind == "event" and any(_THREADING.match(f.path) and f.function == "join" for f in thread.frames):
        return BlockingCall("join", call.frame, caller=caller)
    if call.kind == "loop" and not any("asyncio" in frame.path for frame in thread.frames):
        below = next((frame for frame in thread.frames if not _MACHINERY.match(frame.path)), None)
        by_syscall = _by_syscall(process, thread, caller)
        return by_syscall if below and by_syscall.kind != "loop" else call
    if call.kind == "processes_queue" and thread.futex.startswith("sem:"):
        return BlockingCall("processes_queue", call.frame, caller=caller, detail=thread.futex)
    return call


def _idle_kind(thread: Thread, caller: StackFrame | None) -> str:
    """Return `loop` or `idle` for a thread that only waits for work; empty otherwise."""
    for place, frame in enumerate(thread.frames):
        if any(names.match(frame.function) and path.match(frame.path) for path, names in _IDLE_FRAMES):
            if _SIDE_SERVICE.match(frame.path) and thread.stack_only and caller:
                return ""
            if "asyncio" in frame.path:
                return "loop"
            return "" if any(f.function == "get_response" for f in thread.frames[:place]) else "idle"
        if frame.function == "_run_once" and frame.path.endswith("base_events.py"):
            return "loop"
        joins = frame.function in ("join", "_shutdown") and _THREADING.match(frame.path)
        called = frame.function == "_run" and frame.path.endswith("events.py")
        if joins or called or not _MACHINERY.match(frame.path):
            return ""
    return ""


def _imports(thread: Thread) -> bool:
    return any(frame.path.startswith("<frozen importlib") for frame in thread.frames[:40])


def _by_syscall(process: Process, thread: Thread, caller: StackFrame | None) -> BlockingCall:
    frame = thread.frames[0] if thread.frames else None
    kind = _syscall_kind(process, thread, frame)
    detail = f"{thread.syscall} of {thread.opens}" if thread.opens else thread.syscall
    return BlockingCall(kind, frame, "barrier" if kind == "collective" else "", caller, detail)


def _syscall_kind(process: Process, thread: Thread, frame: StackFrame | None) -> str:
    """Return the kind of a system call, with the call in the source line if it is known."""
    syscall = thread.syscall
    kinds = {item.kind for item in process.fds if item.fd in thread.waits_fds}
    by_line = (_KIND_OF_CALL.get(frame.calls, "") or _kind_of_function(thread, frame)) if frame else ""
    reads_stdin = syscall in _READING_SYSCALLS and 0 in thread.waits_fds
    rules = (
        ("input", reads_stdin and (syscall == "read" or by_line == "input" or "tty" in kinds)),
        (_KIND_OF_SYSCALL.get(syscall, ""), syscall in _KIND_OF_SYSCALL),
        ("pipe_full", "pipe" in kinds and syscall in ("write", "writev")),
        ("pipe", "pipe" in kinds),
        ("loop", syscall.startswith("epoll")),
        ("device", frame is not None and frame.calls in _DEVICE_COPIES and thread.stack_only),
        ("socket", bool(kinds & {"tcp", "unix", "socket"})),
        ("file", syscall in _FILE_SYSCALLS),
        (_futex_kind(process, thread, frame, by_line), syscall == "futex"),
    )
    return next((kind for kind, holds in rules if holds), by_line or "native")


def _kind_of_function(thread: Thread, frame: StackFrame) -> str:
    """Return the kind of the innermost function's own name in a dump."""
    if not thread.stack_only:
        return ""
    if _SOCKET_MODULE.match(frame.path):
        return "socket" if frame.function in _SOCKET_READS else ""
    if frame.function == "_flush_std_streams" and is_forked(thread):
        return "lock"  # the fork copied the stream's lock while another thread owned it
    return _KIND_OF_CALL[frame.function] if frame.function in _KIND_OF_FUNCTION else ""


def _futex_kind(process: Process, thread: Thread, frame: StackFrame | None, by_line: str) -> str:
    """Return what a futex is for: a shared semaphore, a collective finished in C++, a lock."""
    if thread.futex.startswith("sem:"):
        return "processes_lock"
    if frame and frame.calls in DEVICE_CALLS and process.rank is not None:
        return "collective"
    if frame and frame.calls in ("get", "wait", "result"):
        return {"get": "queue", "result": "future"}.get(frame.calls, "event")
    return by_line or ("lock" if frame else "native")
