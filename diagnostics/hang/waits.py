"""What a thread waits for: out of its frames where they tell, else out of the system call that it is in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics.hang import calls, frames
from diagnostics.hang.snapshot import NATIVE

if TYPE_CHECKING:
    from diagnostics.hang.snapshot import Process, StackFrame, Thread


@dataclass(frozen=True)
class Wait:
    """What one thread is in.

    Attributes:
        kind: One of KINDS.
        frame: The frame that tells it; None where a system call did.
        operation: Of a collective, its name.
        place: The first frame outside libraries: who asked for it.
    """

    kind: str
    frame: StackFrame | None = None
    operation: str = ""
    place: StackFrame | None = None
    detail: str = ""


# Kinds, and how a sentence says them.
KINDS = {
    "collective": "waits in a collective",
    "rendezvous": "waits for other ranks to come to the rendezvous",
    "ray": "waits for an answer of Ray",
    "ring_read": "waits for a message in the engine's ring",
    "ring_write": "waits for room in the engine's ring",
    "file_lock": "waits for the lock of a file",
    "data_loader": "waits for a worker of its data loader",
    "input": "waits for input",
    "http": "waits for an HTTP answer",
    "socket": "waits for a socket",
    "connect": "waits to be connected",
    "rpc": "waits for the answer of a remote call",
    "device": "waits for its device",
    "threads": "waits for threads of a native pool",
    "child": "waits for a child process",
    "pool": "waits for a pool's result",
    "future": "waits for a future's result",
    "join": "waits for another thread",
    "queue": "waits for an item in a queue of its own",
    "queue_full": "waits for room in a queue of its own",
    "processes_queue": "waits for an item in a queue between processes",
    "pipe": "waits for something in a pipe",
    "pipe_full": "waits for room in a pipe",
    "processes_lock": "waits for a lock that processes share",
    "lock": "waits for a lock",
    "event": "waits for an event",
    "sleep": "sleeps, and looks again",
    "start": "waits for what it started to be ready",
    "loop": "has nothing to do in its event loop",
    "idle": "has nothing to do",
    "supervise": "supervises its children",
    "compile": "compiles",
    "load": "loads",
    "import": "imports modules",
    "symbolic": "computes symbols without end",
    "regex": "matches a regular expression",
    "compute": "computes",
    "native": "is in native code",
    "kernel": "is in the kernel, where no signal reaches it",
    "stopped": "is stopped",
    "dead": "is dead",
    "between": "is between collectives",
    "unseen": "could not be seen",
}
BUSY = ("compile", "load", "import", "symbolic", "regex", "compute")
IDLE = ("loop", "idle", "supervise")

_WRITES = ("emit", "flush", "handle", "_acquireLock", "acquire")
_FORKS = re.compile(r"gunicorn/arbiter\.py:spawn_worker$|multiprocess(?:ing)?/popen_fork\.py:|os\.py:fork$")
_GIVES_BACK = re.compile(r"(?:threading|logging/__init__)\.py:(?:_release_save|release|_releaseLock)$")
# What may spin while it waits.
_SPUN = ("collective", "rendezvous", "ring_read", "ring_write", "device", "threads")
# What says more than that an event, a selector or a pipe is waited for: the library that waits by it.
_STRONGER = ("queue", "queue_full", "future", "join", "pool", "processes_queue", "data_loader", "start", "supervise",
             "child", "ray",
             "ring_read", "ring_write", "rendezvous", "collective", "file_lock", "pipe_full")  # fmt: skip
# What may be how one of these waits: then the frame further out says it.
_OPEN = ("event", "loop", "pipe", "http", "lock", "socket", "device")
_MEETS = ("rendezvous", "collective")
# Waits of native code that are one only where somebody else asked for it.
_OF_PYTHON = ("device", "threads")
_DRIVER = re.compile(r"(?:^|/)lib(?:cuda(?!rt)\w*|hsa\S*|c|pthread)(?:-[\d.]+)?\.so")
# What only a program calls, not a driver's own thread.
_CALLED = re.compile(r"(?:cu|cuda|hip)[A-Z]\w*(?:Synchronize|Memcpy)\w*|(?:\w+::)*\w+Signal::WaitRelaxed")
_UNNAMED = ("??", "start_thread", "clone", "clone3")
_PYTHON = re.compile(r"\.pyx? |\b_?Py(?:Eval|Object|Run|C?Function|Thread|UFunc|Array)|\bPy_")


def of(process: Process, thread: Thread) -> Wait:
    """What a thread is in."""
    place = _asked(thread)
    if process.state in ("Z", "X"):
        return Wait("dead", place=place)
    if "T" in (process.state, thread.state) or "t" in (process.state, thread.state):
        return Wait("stopped", place=place)
    if thread.state == "D":
        return Wait("kernel", place=place, detail=thread.wchan)
    if not thread.frames:
        return _without_stack(process, thread)
    found = _entered(thread, place) or _by_frames(process, thread, place)
    # Any other wait is none if the thread computes.
    if _computes(thread, found) and not frames.RAYS_LOOP.match(
        f"{thread.frames[0].path}:{thread.frames[0].function}"
    ):
        return Wait("import" if _imports(thread) else "compute", thread.frames[0], place=place)
    return found or _by_call(process, thread, place)


def _without_stack(process: Process, thread: Thread) -> Wait:
    if thread.busy and thread.runnable is not None:
        return Wait("compute")  # in native code, as a process that ends
    return _by_call(process, thread, None) if thread.syscall or thread.wchan else Wait("unseen")


def _entered(thread: Thread, place: StackFrame | None) -> Wait | None:
    """The lock that a thread is about to hold: whatever it keeps, nothing of it has begun."""
    inner = thread.frames[0]
    entered = inner.function == "__enter__" and frames.THREADING.match(inner.path)
    return Wait("lock", inner, place=place) if entered or _after_fork(thread) else None


def _after_fork(thread: Thread) -> bool:
    """Whether it writes to a log or a stream whose lock it can't have: after a fork, or while it gives one back."""
    inner = thread.frames[0]
    writes = inner.path.endswith("logging/__init__.py") and inner.function in _WRITES
    flushes = inner.path == NATIVE and inner.function in ("flush", "write")
    if not calls.unwatched(thread) or not (writes or flushes):
        return False
    forked = any(_FORKS.search(f"{f.path}:{f.function}") for f in thread.frames)
    # What is logged while a lock is given back may want just that.
    return forked or (writes and any(_GIVES_BACK.search(f"{f.path}:{f.function}") for f in thread.frames))


def _says_more(thread: Thread, found: Wait | None, kind: str) -> bool:
    """Whether a frame further out tells a wait better: Python's of a lock in C, a connection's of a selector."""
    inner = found.kind if found else ""
    return (inner, kind) == ("lock", "event") or ((inner, kind) == ("loop", "pipe") and not thread.syscall)


def _computes(thread: Thread, found: Wait | None) -> bool:
    if not thread.busy or (found and found.kind in (*_SPUN, *BUSY)):
        return False
    # Where nothing was counted, a reader of stacks has guessed it from one look: a wait that has a name says more.
    return found is None or thread.runnable is not None or thread.gil


def _by_frames(process: Process, thread: Thread, place: StackFrame | None) -> Wait | None:
    idle = _idle(thread)
    if idle:
        return Wait(idle, thread.frames[0], place=place)
    found: Wait | None = None
    for frame in thread.frames:
        for kind in frames.kinds(frame.path, frame.function):
            if kind in _OF_PYTHON and _of_library(thread, kind):
                continue
            stronger = _MEETS if found is not None and found.kind == "device" else _STRONGER
            weak = found is not None and kind not in stronger
            if (weak and not _says_more(thread, found, kind)) or (
                kind in BUSY and not thread.busy and thread.runnable is not None
            ):
                continue
            operation = frame.function if kind == "collective" else ""
            found = Wait(kind, frame, operation, place)
            if kind not in _OPEN:
                return _refined(process, thread, found)
            break
        if not frames.MACHINERY.match(frame.path) and not frames.LIBRARY.search(frame.path):
            break  # the user's own code: what stands below it called it, and does not say what it waits for
    if found:
        return _refined(process, thread, found)
    if _imports(thread) and (thread.busy or thread.runnable is None):
        return Wait("import", thread.frames[0], place=place)
    return None


def _of_library(thread: Thread, kind: str) -> bool:
    """Whether it is a driver's own thread, or one of a native pool: these rest so."""
    if kind == "threads":
        return not any(_PYTHON.search(f"{f.path} {f.function}") for f in thread.frames)
    if any(_CALLED.fullmatch(frame.function) for frame in thread.frames):
        return False
    return all(_DRIVER.search(f.path) or f.function in _UNNAMED for f in thread.frames)


def _refined(process: Process, thread: Thread, wait: Wait) -> Wait:
    """What else the system call says of a wait: of a pipe which end, of an event loop's select nothing."""
    if wait.kind == "socket" and all(frames.MACHINERY.match(frame.path) for frame in thread.frames):
        # A stack that was cut off before whoever asked: it may be a listener, at rest.
        return Wait("unseen", wait.frame, place=wait.place)
    if wait.kind == "event" and any(
        frames.THREADING.match(f.path) and f.function == "join" for f in thread.frames
    ):
        return Wait("join", wait.frame, place=wait.place)
    if wait.kind == "loop" and not any("asyncio" in frame.path for frame in thread.frames):
        under = next((f for f in thread.frames if not frames.MACHINERY.match(f.path)), None)
        found = _by_call(process, thread, wait.place)
        return found if under and found.kind != "loop" else wait
    if wait.kind == "processes_queue" and thread.futex.startswith("sem:"):
        return Wait("processes_queue", wait.frame, place=wait.place, detail=thread.futex)
    return wait


def _idle(thread: Thread) -> str:
    """Whether a thread only waits for work: `loop` or `idle`; empty if not."""
    for frame in thread.frames:
        if any(names.match(frame.function) and path.match(frame.path) for path, names in frames.IDLES):
            if frames.BESIDE.match(frame.path) and calls.unwatched(thread) and _asked(thread):
                return ""
            asked = [f.function for f in thread.frames[: thread.frames.index(frame)]]
            if "asyncio" in frame.path:
                return "loop"
            return "" if "get_response" in asked else "idle"
        if frame.function == "_run_once" and frame.path.endswith("base_events.py"):
            return "loop"
        joins = frame.function in ("join", "_shutdown") and frames.THREADING.match(frame.path)
        called = frame.function == "_run" and frame.path.endswith("events.py")
        if joins or called or not frames.MACHINERY.match(frame.path):
            return ""
    return ""


def _imports(thread: Thread) -> bool:
    return any(frame.path.startswith("<frozen importlib") for frame in thread.frames[:40])


def _asked(thread: Thread) -> StackFrame | None:
    return next((frame for frame in thread.frames if not frames.LIBRARY.search(frame.path)), None)


def _by_call(process: Process, thread: Thread, place: StackFrame | None) -> Wait:
    """What the system call says, with the call in the source's line where that is known."""
    frame = thread.frames[0] if thread.frames else None
    kind = calls.kind(process, thread, frame)
    return Wait(kind, frame, "barrier" if kind == "collective" else "", place, thread.syscall)
