"""Find the thread that blocks a process: follow the main thread through the process's own locks, queues and futures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diagnostics.hang.blocking_calls import BlockingCall, classify_thread
from diagnostics.hang.snapshot import Process, StackFrame, Thread
from diagnostics.hang.wait_kinds import ENDS, IDLE, WITHIN_PROCESS

Calls = Mapping[int, BlockingCall]
"""The blocking calls of the threads of a process, by thread id."""


@dataclass(frozen=True)
class BlockedState:
    """The blocking thread of a process, and the path of waits from the main thread to it.

    Attributes:
        steps: The threads of the path, from the main thread on, each with its blocking call. The last one blocks the
            process.
        locked: Threads that wait for each other's locks (a deadlock).
        collectives: Threads that are in a collective.
        serves: Whether another thread waits for requests, so that an idle main thread is normal.
        loop_blocked: Whether the blocking thread runs an event loop.
    """

    process: Process
    steps: tuple[tuple[Thread, BlockingCall], ...]
    locked: tuple[Thread, ...] = ()
    collectives: tuple[Thread, ...] = ()
    loop_blocked: bool = False
    serves: bool = False

    @property
    def thread(self) -> Thread | None:
        """The thread that blocks the process."""
        return self.steps[-1][0] if self.steps else None

    @property
    def frames(self) -> tuple[StackFrame, ...]:
        """The frames of the blocking thread, innermost first."""
        return self.thread.frames if self.thread else ()

    @property
    def waited_fds(self) -> tuple[int, ...]:
        """The descriptors that the system call of the blocking thread waits for."""
        return self.thread.waits_fds if self.thread else ()

    @property
    def call(self) -> BlockingCall:
        """The blocking call of the blocking thread."""
        return self.steps[-1][1] if self.steps else BlockingCall("unseen")

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
    """Return the blocking thread of a process, and the path of waits to this thread."""
    calls = {thread.tid: classify_thread(process, thread) for thread in process.threads}
    if ended := {"Z": "dead", "X": "dead", "T": "stopped", "t": "stopped"}.get(process.state):
        main = process.main or Thread(process.pid)
        caller = calls[main.tid].caller if main.tid in calls else None
        return BlockedState(process, ((main, BlockingCall(ended, caller=caller)),))
    active = [t for t in process.threads if calls[t.tid].kind not in (*IDLE, "unseen", "native")]
    first = process.main or next(iter(active or process.threads), None)
    if first is None:
        return BlockedState(process, ())
    steps = _follow(process, calls, first)
    thread, call = steps[-1]
    return BlockedState(
        process,
        steps,
        locked=_locked_threads(process, calls) if call.kind in WITHIN_PROCESS else (),
        collectives=tuple(t for t in process.threads if calls[t.tid].kind == "collective"),
        loop_blocked=call.kind not in IDLE
        and any(ENDS["event_loops"].match(f.location) for f in thread.frames),
        serves=any(calls[t.tid].kind in ("loop", "listen") for t in process.threads if t.tid != first.tid),
    )


def _follow(process: Process, calls: Calls, start: Thread) -> tuple[tuple[Thread, BlockingCall], ...]:
    """Return the threads from `start` to the one that blocks it, each with its call."""
    steps = [(start, calls[start.tid])]
    while (kind := steps[-1][1].kind) in (*WITHIN_PROCESS, *IDLE):
        visited = {thread.tid for thread, _ in steps}
        candidates = [
            t
            for t in process.threads
            if t.tid not in visited
            and calls[t.tid].kind not in (*IDLE, "unseen")
            # If the event loop is idle, only a thread of its pool that runs user code can block the process.
            and not (kind in IDLE and calls[t.tid].caller is None)
            and not (kind == "tasks_done" and calls[t.tid].kind == "queue")
            and not (kind == "lock" and t.futex == steps[-1][0].futex)
        ]
        best = min(candidates, key=lambda t: (_preference(calls[t.tid]), t.tid), default=None)
        if best is None or (kind in IDLE and calls[best.tid].kind == "native"):
            break
        steps.append((best, calls[best.tid]))
    return tuple(steps)


def _preference(call: BlockingCall) -> tuple[bool, bool]:
    """Return a sort key: a wait for something outside the process is better evidence than one for another thread."""
    return call.kind in WITHIN_PROCESS, call.kind == "native"


def _locked_threads(process: Process, calls: Calls) -> tuple[Thread, ...]:
    """Return threads that wait for different locks while no other thread works: each must hold another's."""
    active = [
        t
        for t in process.threads
        if calls[t.tid].kind not in (*IDLE, "unseen", "join", "future", "pool", "native")
    ]
    at_lock = [t for t in active if calls[t.tid].kind == "lock"]
    locks = {t.futex or str(calls[t.tid].caller or calls[t.tid].frame) for t in at_lock}
    only_waiting = all(calls[t.tid].kind in ("lock", "queue", "event") for t in active)
    return tuple(at_lock) if len(locks) > 1 and only_waiting else ()
