"""Where a process stands: the thread that speaks for it, found by following its main thread through its own locks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics.hang import waits
from diagnostics.hang.snapshot import Process, Thread

if TYPE_CHECKING:
    from diagnostics.hang.waits import Wait

# Waits that another thread of the same process can end.
WITHIN = ("join", "queue", "queue_full", "future", "pool", "lock", "event")


@dataclass(frozen=True)
class Stand:
    """Where a process stands.

    Attributes:
        steps: From the main thread on: (thread, what it is in); the last one speaks for the process.
        locked: Threads that wait for each other's locks; empty if none do.
        collectives: How many of its threads are in a collective.
        serves: Whether another of its threads waits for requests: then its main thread may rest for ever.
        loop_blocked: Whether the thread that speaks is its event loop's, in a call that does not come back.
    """

    process: Process
    steps: tuple[tuple[Thread, Wait], ...]
    locked: tuple[Thread, ...] = ()
    collectives: tuple[Thread, ...] = ()
    loop_blocked: bool = False
    serves: bool = False

    @property
    def thread(self) -> Thread | None:
        """The thread that speaks for it."""
        return self.steps[-1][0] if self.steps else None

    @property
    def wait(self) -> Wait:
        """What that thread is in."""
        return self.steps[-1][1] if self.steps else waits.Wait("unseen")

    @property
    def kind(self) -> str:
        """What that is called."""
        return self.wait.kind

    @property
    def asleep_s(self) -> float | None:
        """How long the first thread on the way has slept, as far as the kernel tells."""
        known = [thread.asleep_s for thread, _ in self.steps if thread.asleep_s is not None]
        return max(known) if known else None

    @property
    def still(self) -> bool:
        """Whether the thread that speaks had the same functions on its stack in each sample."""
        return bool(self.thread and self.thread.steady)


def stand(process: Process) -> Stand:
    """Where a process stands."""
    gone = {"Z": "dead", "X": "dead", "T": "stopped", "t": "stopped"}.get(process.state)
    told = {thread.tid: waits.of(process, thread) for thread in process.threads}
    in_collective = tuple(t for t in process.threads if told[t.tid].kind == "collective")
    if gone:
        main = process.main or Thread(process.pid)
        return Stand(
            process, ((main, waits.Wait(gone, place=told[main.tid].place if main.tid in told else None)),)
        )
    speaks = process.main or _telling(process, told)
    if speaks is None:
        return Stand(process, ())
    steps = _followed(process, told, speaks)
    last = steps[-1]
    locked = _locked(process, told) if last[1].kind in WITHIN or last[1].kind == "lock" else ()
    blocked = last[1].kind not in waits.IDLE and _in_loop(last[0])
    serves = any(told[t.tid].kind == "loop" for t in process.threads if t.tid != steps[0][0].tid)
    return Stand(process, steps, locked, in_collective, blocked, serves)


def _telling(process: Process, told: dict[int, Wait]) -> Thread | None:
    """A thread that does something; any other if none does."""
    doing = [t for t in process.threads if told[t.tid].kind not in (*waits.IDLE, "unseen", "native")]
    return next(iter(doing or process.threads), None)


def _followed(process: Process, told: dict[int, Wait], start: Thread) -> tuple[tuple[Thread, Wait], ...]:
    steps = [(start, told[start.tid])]
    while True:
        kind = steps[-1][1].kind
        if kind not in WITHIN and kind not in waits.IDLE:
            return tuple(steps)
        seen = {thread.tid for thread, _ in steps}
        others = [
            t
            for t in process.threads
            if t.tid not in seen and told[t.tid].kind not in (*waits.IDLE, "unseen")
        ]
        if kind in waits.IDLE:
            # The event loop has nothing to do: a thread of its pool may have.
            others = [t for t in others if told[t.tid].place is not None]
        if kind == "lock":
            others = [t for t in others if t.futex != steps[-1][0].futex]
        if not others:
            return tuple(steps)
        # Who waits for something outside this process says more than who waits for another thread.
        best = min(others, key=lambda t: (told[t.tid].kind in WITHIN, told[t.tid].kind == "native", t.tid))
        if kind in waits.IDLE and told[best.tid].kind == "native":
            return tuple(steps)
        steps.append((best, told[best.tid]))


def _locked(process: Process, told: dict[int, Wait]) -> tuple[Thread, ...]:
    """Threads that wait for different locks while no other thread does anything: each must hold another's."""
    doing = [
        t
        for t in process.threads
        if told[t.tid].kind not in (*waits.IDLE, "unseen", "join", "future", "pool", "native")
    ]
    at_lock = [t for t in doing if told[t.tid].kind == "lock"]
    places = {t.futex or str(told[t.tid].place or told[t.tid].frame) for t in at_lock}
    alone = all(told[t.tid].kind in ("lock", "queue", "event") for t in doing)
    return tuple(at_lock) if len(places) > 1 and alone else ()


def _in_loop(thread: Thread) -> bool:
    if any("twisted/internet/" in frame.path for frame in thread.frames):
        return True
    names = [(frame.function, frame.path.rpartition("/")[2]) for frame in thread.frames]
    if ("_run_once", "base_events.py") in names:
        return True
    # Of a piece of a stack its callback's start; of a loop in C, as uvloop's, only who started it is seen.
    if any(frame.function == "_run" and frame.path.endswith("asyncio/events.py") for frame in thread.frames):
        return True
    return ("run", "runners.py") in names or ("run_until_complete", "base_events.py") in names
