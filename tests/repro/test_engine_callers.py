"""Callers of one fake V0 engine overlap without a lock, and get their own completions with the right lock.

A serving loop delivers completions by id. Cancelled calls release the lock, and a deadlock is an error.
"""

import threading

import pytest

from repro.drivers.schedulers import callers
from repro.drivers.schedulers.v0 import FinishedRequest, SchedulerRequest

A = [SchedulerRequest("a1", prompt=1, max_tokens=2), SchedulerRequest("a2", prompt=1, max_tokens=1)]
B = [SchedulerRequest("b1", prompt=1, max_tokens=1)]


class FakeEngine:
    """An engine that gives each request one token per step, and records its calls."""

    def __init__(self):
        self.left, self.log = {}, []

    def add(self, request):
        """Add a request."""
        self.left[request.id] = request.max_tokens

    def abort(self, *ids):
        """Remove requests."""
        for name in ids:
            self.left.pop(name, None)

    @property
    def unfinished(self):
        """Return whether a request is left."""
        return bool(self.left)

    def step(self):
        """Run one step, suspended between schedule and output."""
        self.log.append("schedule")
        yield
        self.log.append("output")
        self.left = {name: tokens - 1 for name, tokens in self.left.items()}
        done = [FinishedRequest(name, 1) for name, tokens in self.left.items() if tokens == 0]
        self.left = {name: tokens for name, tokens in self.left.items() if tokens}
        return done


def names(completions):
    """Return the request ids of completions, in order."""
    return [done.id for done in completions]


def test_without_a_lock_steps_overlap():
    """Without a lock, both callers schedule before the first output."""
    engine = FakeEngine()
    callers.take_turns([callers.generate(engine, A), callers.generate(engine, B)])
    assert engine.log[:2] == ["schedule", "schedule"]


@pytest.mark.parametrize("locked", [callers.generate_locked, callers.generate])
def test_locked_steps_do_not_overlap(locked):
    """With a lock around the call or around each step, every schedule is followed by its output."""
    engine, lock = FakeEngine(), threading.Lock()
    callers.take_turns([locked(engine, A, lock), locked(engine, B, lock)])
    assert engine.log == ["schedule", "output"] * (len(engine.log) // 2)
    assert not lock.locked()


def test_lock_scope_decides_which_caller_gets_completions():
    """With a lock around generate(), each caller gets its own completions; around a step, one also gets the other's."""
    lock = threading.Lock()
    engine = FakeEngine()
    a, b = callers.take_turns([callers.generate_locked(engine, item, lock) for item in (A, B)])
    assert (names(a), names(b)) == (["a2", "a1"], ["b1"])
    engine = FakeEngine()
    a, _ = callers.take_turns([callers.generate(engine, item, lock) for item in (A, B)])
    assert "b1" in names(a)


def test_server_delivers_completions_by_id():
    """With one serving loop, a later client gets its completions, and a cancelled request gets none."""
    server = callers.ServingLoop(FakeEngine())
    server.submit(A)
    loop = server.loop()
    next(loop)
    server.submit(B)
    server.cancel(A[:1])
    callers.take_turns([loop])
    assert (names(server.completions_of(A)), names(server.completions_of(B))) == (["a2"], ["b1"])


def test_cancelled_call_releases_the_lock():
    engine, lock = FakeEngine(), threading.Lock()
    call = callers.generate_locked(engine, A, lock)
    next(call)
    call.close()
    assert not lock.locked()


def test_deadlocked_callers_are_an_error():
    engine, lock = FakeEngine(), threading.Lock()
    lock.acquire()
    with pytest.raises(RuntimeError, match="wait for each other"):
        callers.take_turns([callers.generate_locked(engine, A, lock)])
