"""Who steps an engine: one caller, two with or without a lock, or a server that steps for all.

Each owner is a generator, suspended wherever another thread could run: in the forward pass, and while it waits for a
lock. `take_turns` is the operating system that switches between them, always in the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Sequence

from repro.drivers.schedulers.v0 import Delivered, SchedulerRequest, V0Engine

Owner = Generator[None, None, list[Delivered]]


def generate(engine: V0Engine, requests: Iterable[SchedulerRequest]) -> Owner:
    """As `LLM.generate`: submits, steps until the engine is empty, returns whatever finished meanwhile."""
    for request in requests:
        engine.add(request)
    return (yield from engine.run())


def generate_locked(engine: V0Engine, requests: Iterable[SchedulerRequest], lock: threading.Lock) -> Owner:
    """As `generate`, with one lock held around the whole of it."""
    yield from _acquire(lock)
    try:
        return (yield from generate(engine, requests))
    finally:
        lock.release()


def generate_step_locked(
    engine: V0Engine, requests: Iterable[SchedulerRequest], lock: threading.Lock
) -> Owner:
    """As `generate`, with the lock held around each step alone."""
    for request in requests:
        engine.add(request)
    finished: list[Delivered] = []
    while engine.unfinished:
        yield from _acquire(lock)
        try:
            finished += yield from engine.step()
        finally:
            lock.release()
        yield  # between two steps the other thread gets its chance
    return finished


def one_after_the_other(*owners: Owner) -> list[list[Delivered]]:
    """Lets one owner return before the next starts: what a queue of one worker does."""
    return [take_turns([owner])[0] for owner in owners]


class ServingLoop:
    """As `AsyncLLMEngine`: one loop steps the engine; clients submit, abort, and get their answers by id."""

    def __init__(self, engine: V0Engine) -> None:
        self.engine = engine
        self._answers: list[Delivered] = []
        self._new: list[SchedulerRequest] = []
        self._aborted: list[str] = []

    def submit(self, requests: Iterable[SchedulerRequest]) -> None:
        """Queues requests; they reach the engine before its next step."""
        self._new += requests

    def cancel(self, requests: Iterable[SchedulerRequest]) -> None:
        """Queues aborts, as the end of a client's coroutine does: the step that is running is left alone."""
        self._aborted += [request.id for request in requests]

    def loop(self) -> Owner:
        """As `AsyncLLMEngine.engine_step`, again and again until nothing is left to do."""
        while self._new or self._aborted or self.engine.unfinished:
            new, self._new = self._new, []
            aborted, self._aborted = self._aborted, []
            for request in new:
                self.engine.add(request)
            self.engine.abort(*aborted)
            self._answers += yield from self.engine.step()
        return self._answers

    def answers_to(self, requests: Iterable[SchedulerRequest]) -> list[Delivered]:
        """Returns what the client that submitted these requests received."""
        ids = {request.id for request in requests}
        return [answer for answer in self._answers if answer.id in ids]


def take_turns(owners: Sequence[Owner]) -> list[list[Delivered]]:
    """Runs owners in turn, each to its next suspension, until all have returned; gives what each received.

    Raises:
        RuntimeError: they only wait for each other.
    """
    received: list[list[Delivered]] = [[] for _ in owners]
    alive = dict(enumerate(owners))
    for _ in range(10_000):
        for index, owner in list(alive.items()):
            try:
                next(owner)
            except StopIteration as done:
                received[index] = list(done.value)
                del alive[index]
        if not alive:
            return received
    raise RuntimeError("the owners of the engine wait for each other")


def _acquire(lock: threading.Lock) -> Generator[None, None, None]:
    while not lock.acquire(blocking=False):
        yield
