"""Simulate threads, or the clients of a server loop, that use one V0 engine: each caller is a generator.

`generate` is one caller, `generate_locked` one with a lock, and `ServingLoop` the server loop. A caller is suspended
where another thread could run: in the forward pass, while it waits for a lock, and after a step that released its lock.
`take_turns` switches between callers, always in the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Sequence

from repro.drivers.schedulers.v0 import FinishedRequest, SchedulerRequest, V0Engine

Caller = Generator[None, None, list[FinishedRequest]]


def generate(
    engine: V0Engine, requests: Iterable[SchedulerRequest], step_lock: threading.Lock | None = None
) -> Caller:
    """Generate like `LLM.generate`: submit requests, step until the engine is empty, return its steps' completions.

    A `step_lock` is held only during each step.
    """
    for request in requests:
        engine.add(request)
    finished: list[FinishedRequest] = []
    while engine.unfinished:
        if step_lock is None:
            finished += yield from engine.step()
        else:
            finished += yield from _locked(engine.step(), step_lock)
            yield  # another thread may run between two steps
    return finished


def generate_locked(engine: V0Engine, requests: Iterable[SchedulerRequest], lock: threading.Lock) -> Caller:
    """Generate like `generate`, and hold the lock during the whole call."""
    return (yield from _locked(generate(engine, requests), lock))


class ServingLoop:
    """A server loop like that of `AsyncLLMEngine`; clients submit, abort and read answers by request id."""

    def __init__(self, engine: V0Engine) -> None:
        self.engine = engine
        self._answers: list[FinishedRequest] = []
        self._new: list[SchedulerRequest] = []
        self._aborted: list[str] = []

    def submit(self, requests: Iterable[SchedulerRequest]) -> None:
        """Queue requests for the engine's next step."""
        self._new += requests

    def cancel(self, requests: Iterable[SchedulerRequest]) -> None:
        """Queue aborts, as a cancelled client coroutine does; the running step is not changed."""
        self._aborted += [request.id for request in requests]

    def loop(self) -> Caller:
        """Step the engine like `AsyncLLMEngine.engine_step` until no work is left."""
        while self._new or self._aborted or self.engine.unfinished:
            new, self._new = self._new, []
            aborted, self._aborted = self._aborted, []
            for request in new:
                self.engine.add(request)
            self.engine.abort(*aborted)
            self._answers += yield from self.engine.step()
        return self._answers

    def completions_of(self, requests: Iterable[SchedulerRequest]) -> list[FinishedRequest]:
        """Return the completions of these requests."""
        ids = {request.id for request in requests}
        return [answer for answer in self._answers if answer.id in ids]


def take_turns(callers: Sequence[Caller]) -> list[list[FinishedRequest]]:
    """Run callers in turn, each to its next suspension, until all have returned; return each caller's completions.

    Raises:
        RuntimeError: A caller has not returned after 10 000 turns.
    """
    received: list[list[FinishedRequest]] = [[] for _ in callers]
    running = dict(enumerate(callers))
    for _ in range(10_000):
        for index, caller in list(running.items()):
            try:
                next(caller)
            except StopIteration as done:
                received[index] = list(done.value)
                del running[index]
        if not running:
            return received
    raise RuntimeError("the callers of the engine wait for each other, or it never gets empty")


def _locked(work: Caller, lock: threading.Lock) -> Caller:
    """Do the work with the lock held."""
    while not lock.acquire(blocking=False):
        yield
    try:
        return (yield from work)
    finally:
        lock.release()
