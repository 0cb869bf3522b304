"""Classify the call that blocks a thread (`classify_thread`), and find the thread that blocks a process.

A call is classified by the kernel's state of the thread, by the frames of its stack, or else by its system call. A
thread that does not block gets a kind such as `compute`, `import` or `idle`. `blocked_state` follows the waits of the
main thread within the process (locks, queues, futures) to the blocking thread, and finds threads in a deadlock.
"""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from diagnostics.hang import wait_kinds
from diagnostics.hang.snapshot import Process, StackFrame, Thread
from diagnostics.hang.wait_kinds import IDLE, LIBRARY, PATTERNS, WITHIN_PROCESS
from diagnostics.logs.tracebacks import short_path


@dataclass(frozen=True)
class BlockingCall:
    """The call that blocks a thread.

    Attributes:
        kind: Kind of the wait, a key of KINDS.
        frame: The frame that shows the call, else the innermost; None without a stack, or if the state shows the call.
        operation: Name of the collective; empty for other calls.
        caller: The innermost frame outside libraries.
        detail: A kernel function, a system call (with the file it opens or the kernel function), or a semaphore.
    """

    kind: str
    frame: StackFrame | None = None
    operation: str = ""
    caller: StackFrame | None = None
    detail: str = ""

    @property
    def wait(self) -> wait_kinds.WaitKind:
        """The properties of the call's kind."""
        return wait_kinds.KINDS[self.kind]


_THREADING = re.compile(r"(?:^|.*/)threading\.py$")
# The patterns below match frames as "path:function".
# Ray's core loop only polls, but on a busy machine it seems to compute.
_RAY_LOOP = re.compile(r"(?:^|.*/)ray/(?:_private/)?worker\.py:main_loop$")
# Threads of a device driver idle in these libraries: such a wait counts only if the program called it.
_DRIVER = re.compile(r"(?:^|/)lib(?:cuda(?!rt)\w*|hsa\S*|c|pthread)(?:-[\d.]+)?\.so")
_THREAD_START = ("??", "start_thread", "clone", "clone3")
_DEVICE_COPIES = ("item", "tolist", "cpu", "synchronize")
DEVICE_CALLS = ("wait", "barrier", *_DEVICE_COPIES)
"""Calls by which a rank waits for its device or for a collective that it started."""
_SENDING_SYSCALLS = ("sendto", "sendmsg", "write", "writev")
_READING_SYSCALLS = ("read", "poll", "ppoll", "select", "pselect6")
# Waits for an event or a lock, which an outer frame of the standard library explains.
_CONDITIONS = ("event", "lock", "processes_lock")
_BACKWARD = re.compile(r"(?:^|.*/)torch/autograd/(?:__init__|graph)\.py$")
_CHILD_WAITS = ("wait4", "waitid")


def frame_text(frame: StackFrame) -> str:
    """Return a frame as "get (queue.py:171)"."""
    if not frame.path:
        return frame.function
    line = f":{frame.line}" if frame.line else ""
    return f"{frame.function} ({short_path(frame.path)}{line})"


def classify_thread(process: Process, thread: Thread) -> BlockingCall:
    """Return the call that blocks a thread; if it computes, a call of a kind such as `compute` or `import`."""
    caller = next((frame for frame in thread.frames if not LIBRARY.search(frame.path)), None)
    if state := _by_state(process, thread):
        return replace(state, caller=caller)
    if not thread.frames:
        return _call_without_stack(process, thread)
    inner = thread.frames[0]
    if thread.gil and thread.steady and thread.syscall and not thread.busy:
        return BlockingCall("gil", inner, caller=caller)
    if inner.function == "__enter__" and _THREADING.match(inner.path):
        call: BlockingCall | None = BlockingCall("lock", inner, caller=caller)
    else:
        call = _by_frames(process, thread, caller)
    if _computes(thread, call):
        return BlockingCall("import" if _imports(thread) else "compute", inner, caller=caller)
    return call or _by_syscall(process, thread, caller)


def _by_state(process: Process, thread: Thread) -> BlockingCall | None:
    """Return the call if the kernel's state alone shows it: dead, stopped, or asleep in the kernel or a file system."""
    if process.state in ("Z", "X"):
        return BlockingCall("dead")
    if {"T", "t"} & {process.state, thread.state}:
        return BlockingCall("stopped")
    if wait_kinds.FILE_CHANNELS.match(thread.wchan) and thread.syscall != "poll":
        where = f"{thread.syscall or 'a system call'} in {thread.wchan}"
        return BlockingCall("kernel" if thread.state == "D" else "file", detail=where)
    return BlockingCall("kernel", detail=thread.wchan) if thread.state == "D" else None


def _call_without_stack(process: Process, thread: Thread) -> BlockingCall:
    """Classify a thread without a Python stack: a filter such as `tail`, a busy thread, or by its system call."""
    is_filter = not process.python and PATTERNS["filters"].match(process.title.split(" ")[0])
    if is_filter and thread.syscall not in _CHILD_WAITS:
        return BlockingCall("pipe_full" if thread.syscall in ("write", "writev") else "idle")
    if thread.busy and thread.runnable is not None:
        return BlockingCall("compute")  # in native code, as a process that ends
    return _by_syscall(process, thread, None) if thread.syscall or thread.wchan else BlockingCall("unseen")


def _computes(thread: Thread, call: BlockingCall | None) -> bool:
    """Return whether a thread computes instead of waiting."""
    if not thread.busy or (call and (call.wait.spins or call.kind in wait_kinds.COMPUTING)):
        return False
    if _RAY_LOOP.match(thread.frames[0].location):
        return False
    # Without counters a stack tool guessed it from one sample: a wait with a name is more reliable.
    return call is None or thread.runnable is not None or thread.gil


def _by_frames(process: Process, thread: Thread, caller: StackFrame | None) -> BlockingCall | None:
    """Return the call that the frames show, from the innermost to the first of user code; None if they show none."""
    if idle := _idle_kind(thread):
        return BlockingCall(idle, thread.frames[0], caller=caller)
    call: BlockingCall | None = None
    for frame in thread.frames:
        kinds = wait_kinds.kinds_of_frame(frame.path, frame.function)
        kind = next((k for k in kinds if _is_more_specific(thread, call, k)), None)
        if kind is not None:
            call = BlockingCall(kind, frame, frame.function if kind == "collective" else "", caller)
            if call.wait.frame != "means":
                break
        if not PATTERNS["machinery"].match(frame.path) and not LIBRARY.search(frame.path):
            break  # user code: the outer frames called it and do not show its blocking call
    if call:
        return _refine(process, thread, call)
    if _imports(thread) and (thread.busy or thread.runnable is None):
        return BlockingCall("import", thread.frames[0], caller=caller)
    return None


def _is_more_specific(thread: Thread, inner: BlockingCall | None, kind: str) -> bool:
    """Return whether a frame shows a wait, and shows it more precisely than the inner frames."""
    if kind == "device" and all(_DRIVER.search(f.path) or f.function in _THREAD_START for f in thread.frames):
        return False
    if kind in wait_kinds.COMPUTING and not thread.busy and thread.runnable is not None:
        return False
    if inner is None or (inner.kind, kind) == ("lock", "event"):
        return True
    if (inner.kind, kind) == ("loop", "pipe"):
        return not thread.syscall
    if inner.kind == "device":
        return kind in ("rendezvous", "collective")
    return wait_kinds.KINDS[kind].frame == "names"


def _refine(process: Process, thread: Thread, call: BlockingCall) -> BlockingCall:
    """Make the kind of a call more precise where its system call or other frames show more."""
    only_machinery = all(PATTERNS["machinery"].match(frame.path) for frame in thread.frames)
    if call.kind in ("socket", "pipe", "loop", "http") and thread.syscall in ("accept", "accept4"):
        return replace(call, kind="listen")
    if call.kind == "socket" and only_machinery:
        return replace(call, kind="unseen")  # a stack cut off before the caller: it may be an idle listener
    call = _refine_condition(thread, call)
    if call.kind == "join" and _reduces_gradients(process, thread, call):
        return replace(call, kind="collective", operation="backward")
    if call.kind == "loop" and not only_machinery and not any("asyncio" in f.path for f in thread.frames):
        by_syscall = _by_syscall(process, thread, call.caller)
        return by_syscall if by_syscall.kind != "loop" else call
    if call.kind in ("processes_queue", "pipe_full") and thread.futex.startswith("sem:"):
        # `put` itself waits for the semaphore of the queue's size, a function inside it for the lock of the pipe.
        full = "processes_queue_full" if thread.frames[0].function == "put" else "processes_lock"
        return replace(call, kind=full if call.kind == "pipe_full" else call.kind, detail=thread.futex)
    return call


def _refine_condition(thread: Thread, call: BlockingCall) -> BlockingCall:
    """Replace the kind of a wait for an event or lock by that of its caller: a barrier, a semaphore, or a join()."""
    if call.kind not in _CONDITIONS:
        return call
    machinery = itertools.takewhile(lambda f: PATTERNS["machinery"].match(f.path), thread.frames)
    callers = [k for f in machinery for k, frame in wait_kinds.CALLERS.items() if frame.match(f.location)]
    return replace(call, kind=callers[-1]) if callers else call


def _reduces_gradients(process: Process, thread: Thread, call: BlockingCall) -> bool:
    """Return whether a rank is in a backward pass that no other thread runs, as on a CPU: it reduces gradients."""
    if process.rank is None or not call.frame or not _BACKWARD.match(call.frame.path):
        return False
    threads = [item for item in process.threads if item.tid != thread.tid]
    return not any("torch/" in frame.path for item in threads for frame in item.frames)


def _idle_kind(thread: Thread) -> str:
    """Return `loop`, `listen` or `idle` for a thread that waits only for work; empty otherwise."""
    for index, frame in enumerate(thread.frames):
        if wait_kinds.is_idle_frame(frame.path, frame.function):
            if "asyncio" in frame.path or "socketserver" in frame.path:
                return "loop" if "asyncio" in frame.path else "listen"
            serves = _serves_manager(thread) or any(
                f.function == "get_response" for f in thread.frames[:index]
            )
            return "" if serves else "idle"
        if frame.function == "_run_once" and frame.path.endswith("base_events.py"):
            return "loop"
        if frame.function == "_feed" and frame.path.endswith("queues.py"):
            # A queue's feeder thread waits for items, unless it writes one into a full pipe.
            return "idle" if index and all(_THREADING.match(f.path) for f in thread.frames[:index]) else ""
        joins = frame.function in ("join", "_shutdown") and _THREADING.match(frame.path)
        called = frame.function == "_run" and frame.path.endswith("events.py")
        if joins or called or not PATTERNS["machinery"].match(frame.path):
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
    """Return the kind of a system call: by its name, its descriptors, and the call in the innermost source line."""
    syscall = thread.syscall
    waited = set(thread.waits_fds)
    kinds = {item.kind for item in process.fds if item.fd in waited}
    by_line = wait_kinds.KIND_OF_SOURCE_CALL.get(frame.calls, "") if frame else ""
    is_dump = thread.runnable is None and not (syscall or thread.wchan)
    reads_stdin = syscall in _READING_SYSCALLS and 0 in thread.waits_fds
    rules = (
        ("input", reads_stdin and (syscall == "read" or by_line == "input" or "tty" in kinds)),
        (wait_kinds.KIND_OF_SYSCALL.get(syscall, ""), syscall in wait_kinds.KIND_OF_SYSCALL),
        ("pipe_full", "pipe" in kinds and syscall in ("write", "writev")),
        ("pipe", "pipe" in kinds),
        ("loop", syscall.startswith("epoll")),
        ("device", frame is not None and frame.calls in _DEVICE_COPIES and is_dump),
        ("socket_full", bool(kinds & {"tcp", "unix"}) and syscall in _SENDING_SYSCALLS),
        ("socket", bool(kinds & {"tcp", "unix", "socket"})),
        (_futex_kind(process, thread, frame, by_line), syscall == "futex"),
    )
    return next((kind for kind, holds in rules if holds), by_line or "native")


def _futex_kind(process: Process, thread: Thread, frame: StackFrame | None, by_line: str) -> str:
    """Return the kind of a wait at a futex: a shared semaphore, a collective whose wait is in C++, a queue, a lock."""
    if thread.futex.startswith("sem:"):
        return "processes_lock"
    if frame and frame.calls in DEVICE_CALLS and process.rank is not None:
        return "collective"
    if frame and frame.calls in ("get", "wait", "result"):
        return {"get": "queue", "result": "future"}.get(frame.calls, "event")
    return by_line or ("lock" if frame else "native")


# The thread that blocks a process.

_MAX_STEPS = 16
"""Most threads on the path from the main thread to the blocking one: a dump may have hundreds at each other's locks."""
Calls = Mapping[int, BlockingCall]
"""The blocking calls of the threads of a process, by thread id."""


@dataclass(frozen=True)
class BlockedState:
    """The blocking thread of a process, and the path of waits from the main thread to it.

    Attributes:
        steps: The threads of the path, from the main thread on, each with its blocking call. The last one blocks the
            process. A process that ended, is stopped or has no threads has one step.
        deadlocked: Threads that wait for each other's locks or ends.
        in_collective: Threads that are in a collective.
        loop_blocked: Whether the blocking thread runs an event loop, which its call blocks.
        serves: Whether another thread waits for requests, so that an idle main thread is normal.
        serves_manager: Whether the blocking thread runs a call to an object of a manager of multiprocessing.
        alone: Whether all threads outside of the path are idle, and none of them runs an event loop.
    """

    process: Process
    steps: tuple[tuple[Thread, BlockingCall], ...]
    deadlocked: tuple[Thread, ...] = ()
    in_collective: tuple[Thread, ...] = ()
    loop_blocked: bool = False
    serves: bool = False
    serves_manager: bool = False
    alone: bool = False

    @property
    def thread(self) -> Thread:
        """The thread that blocks the process."""
        return self.steps[-1][0]

    @property
    def frames(self) -> tuple[StackFrame, ...]:
        """The frames of the blocking thread, innermost first."""
        return self.thread.frames

    @cached_property
    def waited_fds(self) -> frozenset[int]:
        """The descriptors that the system call of the blocking thread waits for."""
        return frozenset(self.thread.waits_fds)

    @property
    def reads_stream(self) -> bool:
        """Whether the blocking thread reads the next part of an HTTP response whose length is not known."""
        names = [frame.function for frame in self.frames]
        callers = [caller for name, caller in itertools.pairwise(names) if name.startswith("iter_")]
        return callers[-1:] not in ([], ["read"]) or any("chunk" in name for name in names)

    @property
    def has_time_limit(self) -> bool:
        """Whether the program gave the wait a time limit. A library may wait in parts for as long as it takes."""
        callers = (frame.path for frame in self.frames if not PATTERNS["standard_library"].match(frame.path))
        by_user = self.kind in ("http", "socket") or not LIBRARY.search(next(callers, ""))
        return self.thread.timed and by_user and not self.call.wait.polls

    @property
    def polls_for_lock(self) -> bool:
        """Whether the function that waits is named like the acquisition of a lock."""
        return bool(self.call.caller and PATTERNS["lock_functions"].match(self.call.caller.location))

    @property
    def call(self) -> BlockingCall:
        """The blocking call of the blocking thread."""
        return self.steps[-1][1]

    @property
    def kind(self) -> str:
        """The kind of the blocking call."""
        return self.call.kind

    @property
    def asleep_s(self) -> float | None:
        """Seconds that the longest-sleeping thread of the path has slept; None if unknown."""
        times = [thread.asleep_s for thread, _ in self.steps if thread.asleep_s is not None]
        return max(times) if times else None


def blocked_state(process: Process) -> BlockedState:
    """Return the blocking thread of a process, the path of waits to it, and what other threads do meanwhile."""
    calls = {thread.tid: classify_thread(process, thread) for thread in process.threads}
    active = [t for t in process.threads if calls[t.tid].kind not in (*IDLE, "unseen", "native")]
    first = process.main or next(iter(active or process.threads), Thread(process.pid))
    ended = {"Z": "dead", "X": "dead", "T": "stopped", "t": "stopped"}.get(process.state)
    if ended or not process.threads:
        caller = calls[first.tid].caller if process.threads else None
        return BlockedState(process, ((first, BlockingCall(ended or "unseen", caller=caller)),))
    steps = _steps(process, calls, first)
    # A sleeping process still sends what it put into a queue.
    feeders = [t for t in process.threads if t.name == "QueueFeederThread" and t.futex.startswith("sem:")]
    if feeders and steps[-1][1].kind == "sleep":
        steps = (*steps, (feeders[0], calls[feeders[0].tid]))
    thread, call = steps[-1]
    locked = _locked_threads(process, calls) if call.kind in WITHIN_PROCESS else ()
    collectives = tuple(t for t in process.threads if calls[t.tid].kind == "collective")
    own = itertools.takewhile(lambda frame: not PATTERNS["forks"].match(frame.location), thread.frames)
    runs_loop = any(PATTERNS["event_loops"].match(frame.location) for frame in own)
    serves = any(calls[t.tid].kind in ("loop", "listen") for t in process.threads if t.tid != first.tid)
    runs_loop = runs_loop and call.kind not in IDLE
    managed = _serves_manager(thread) and call.kind in WITHIN_PROCESS
    others = {calls[thread.tid].kind for thread in process.threads if thread not in dict(steps)}
    idle = {*IDLE, "unseen"} | ({"queue"} if call.kind == "tasks_done" else set())
    alone = others.isdisjoint({"loop"}) and others <= idle
    return BlockedState(process, steps, locked, collectives, runs_loop, serves, managed, alone)


def _steps(process: Process, calls: Calls, start: Thread) -> tuple[tuple[Thread, BlockingCall], ...]:
    """Return the threads from `start` to the one that blocks it, each with its call."""

    def order(t: Thread) -> tuple[bool, bool, int]:
        # A wait for something outside the process is better evidence than one for another thread.
        return calls[t.tid].kind in WITHIN_PROCESS, calls[t.tid].kind == "native", t.tid

    steps = [(start, calls[start.tid])]
    while (kind := steps[-1][1].kind) in (*WITHIN_PROCESS, *IDLE) and len(steps) < _MAX_STEPS:
        visited = {thread.tid for thread, _ in steps}
        candidates = [
            t
            for t in process.threads
            if t.tid not in visited
            and calls[t.tid].kind not in (*IDLE, "unseen")
            # If the event loop is idle, only a thread of its pool that runs user code can block the process.
            and not (kind in IDLE and calls[t.tid].caller is None and not _serves_manager(t))
            and not (kind == "tasks_done" and calls[t.tid].kind == "queue")
            and not (kind == "lock" and t.futex == steps[-1][0].futex)
        ]
        best = min(candidates, key=order, default=None)
        if best is None or (kind in IDLE and calls[best.tid].kind == "native"):
            break
        steps.append((best, calls[best.tid]))
    handlers = [t for t in process.threads if t is not start and t.syscall in ("recvfrom", "read")]
    if kind == "join" and 0 < len(handlers) == len(process.threads) - len(steps):
        # The handlers of a closed server, which wait for requests.
        steps.append((handlers[0], _by_syscall(process, handlers[0], None)))
    return tuple(steps)


def _serves_manager(thread: Thread) -> bool:
    """Return whether a manager's thread runs a call of a client; between calls it reads."""
    serves = any(PATTERNS["manager_calls"].match(frame.location) for frame in thread.frames)
    return serves and thread.syscall == "futex"


def _locked_threads(process: Process, calls: Calls) -> tuple[Thread, ...]:
    """Return the threads in a deadlock: all join one another, or wait for several locks while no active thread runs."""
    threads = process.threads
    joining = [t for t in threads if calls[t.tid].kind == "join" and _THREADING.match(t.frames[0].path)]
    if len(threads) > 1 and len(joining) == len(threads):
        return threads
    inactive = (*IDLE, "unseen", "join", "future", "pool", "native")
    active = [t for t in process.threads if calls[t.tid].kind not in inactive]
    at_lock = [t for t in active if calls[t.tid].kind == "lock"]
    locks = {t.futex or str(calls[t.tid].caller or calls[t.tid].frame) for t in at_lock}
    only_waiting = all(calls[t.tid].kind in ("lock", "queue", "event") for t in active)
    return tuple(at_lock) if len(locks) > 1 and only_waiting else ()
