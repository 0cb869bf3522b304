"""Switching between the callers of an engine, tested on a fake engine."""

import threading

import pytest

from repro.drivers.schedulers import callers
from repro.drivers.schedulers.v0 import Delivered, SchedulerRequest

A = [SchedulerRequest("a1", prompt=1, max_tokens=2), SchedulerRequest("a2", prompt=1, max_tokens=1)]
B = [SchedulerRequest("b1", prompt=1, max_tokens=1)]


class Straw:
    """Gives each request a token in a step; writes down what happens."""

    def __init__(self):
        self.left, self.log = {}, []

    def add(self, request):
        """Take a request."""
        self.left[request.id] = request.max_tokens

    def abort(self, *ids):
        """Forget requests."""
        for name in ids:
            self.left.pop(name, None)

    @property
    def unfinished(self):
        """Whether anything is left."""
        return bool(self.left)

    def step(self):
        """One step, suspended between schedule and output."""
        self.log.append("schedule")
        yield
        self.log.append("output")
        self.left = {name: tokens - 1 for name, tokens in self.left.items()}
        done = [Delivered(name, 1) for name, tokens in self.left.items() if tokens == 0]
        self.left = {name: tokens for name, tokens in self.left.items() if tokens}
        return done

    def run(self):
        """Step until nothing is left."""
        finished = []
        while self.unfinished:
            finished += yield from self.step()
        return finished


def names(completions):
    """Their requests, in order."""
    return [done.id for done in completions]


def test_without_a_lock_steps_overlap():
    """Both have scheduled before the first output is there."""
    engine = Straw()
    callers.take_turns([callers.generate(engine, A), callers.generate(engine, B)])
    assert engine.log[:2] == ["schedule", "schedule"]


@pytest.mark.parametrize("locked", [callers.generate_locked, callers.generate_step_locked])
def test_with_a_lock_no_step_overlaps_another(locked):
    """The lock may be held during the call or during each step."""
    engine, lock = Straw(), threading.Lock()
    callers.take_turns([locked(engine, A, lock), locked(engine, B, lock)])
    assert engine.log == ["schedule", "output"] * (len(engine.log) // 2)
    assert not lock.locked()


def test_a_lock_decides_who_gets_the_completions():
    """Around generate() each caller gets its own; around each step whoever steps gets what finishes."""
    lock = threading.Lock()
    engine = Straw()
    a, b = callers.take_turns([callers.generate_locked(engine, item, lock) for item in (A, B)])
    assert (names(a), names(b)) == (["a2", "a1"], ["b1"])
    engine = Straw()
    a, _ = callers.take_turns([callers.generate_step_locked(engine, item, lock) for item in (A, B)])
    assert "b1" in names(a)


def test_a_server_gives_answers_by_id():
    """One loop steps; a client that comes later gets its own, one that was cancelled gets none."""
    server = callers.ServingLoop(Straw())
    server.submit(A)
    loop = server.loop()
    next(loop)
    server.submit(B)
    server.cancel(A[:1])
    callers.take_turns([loop])
    assert (names(server.completions_of(A)), names(server.completions_of(B))) == (["a2"], ["b1"])


def test_a_closed_call_gives_the_lock_back():
    """A cancelled owner doesn't stop the others for good."""
    engine, lock = Straw(), threading.Lock()
    call = callers.generate_locked(engine, A, lock)
    next(call)
    call.close()
    assert not lock.locked()


def test_owners_that_only_wait_are_an_error():
    """Never an endless loop."""
    engine, lock = Straw(), threading.Lock()
    lock.acquire()
    with pytest.raises(RuntimeError, match="wait for each other"):
        callers.take_turns([callers.generate_locked(engine, A, lock)])
