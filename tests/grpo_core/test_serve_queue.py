"""Whose turn it is at a server's engine: queue, time limit, and what an update does to a running call."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi import HTTPException

from grpo_core.rollout.engine import Capabilities, EngineError, EngineUnreachableError
from grpo_core.rollout.server.access import Limits
from grpo_core.rollout.server.engine_queue import EngineQueue


class GateEngine:
    """A fake engine whose `generate` lasts until it is released or aborted, and returns which."""

    name = "gate"

    def __init__(self, *, abort: bool = True) -> None:
        self.capabilities = Capabilities(
            seeds=True, fingerprint=True, sleep=False, abort=abort, why_not={} if abort else {"abort": "no"}
        )
        self.policy_version, self.log = 0, []
        self.begun, self.end = threading.Event(), threading.Event()

    def generate(self) -> str:
        self.begun.set()
        assert self.end.wait(500)
        self.log.append(f"sampled {self.policy_version}")
        return self.log[-1]

    def quick(self) -> str:
        self.log.append(f"quick {self.policy_version}")
        return self.log[-1]

    def update_weights(self, tensors, version: int) -> None:
        self.policy_version = version
        self.log.append(f"updated {version}")

    def abort(self) -> None:
        if self.begun.is_set():
            self.end.set()


def in_a_queue(scenario, engine, **options):
    """Run a scenario with a queue before the engine, in a separate event loop and thread."""

    async def run():
        with ThreadPoolExecutor(1) as thread:
            try:
                return await scenario(EngineQueue(engine, thread, Limits(**{"waiting": 4, **options})))
            finally:
                engine.end.set()

    return asyncio.run(run())


async def wait_until_sampling(engine) -> None:
    """Wait until `generate` is in the engine."""
    assert await asyncio.to_thread(engine.begun.wait, 500)


def test_an_update_follows_the_running_call_and_passes_those_that_wait():
    """What waited is sampled from the new."""
    engine = GateEngine()

    async def scenario(queue):
        first = asyncio.create_task(queue.call(lambda held: held.generate()))
        await wait_until_sampling(engine)
        second = asyncio.create_task(queue.call(lambda held: held.quick()))
        await asyncio.sleep(0)
        update = asyncio.create_task(queue.update({}, 1))
        done, _ = await asyncio.wait({first, second, update}, timeout=0.2)
        assert not done
        engine.end.set()
        return await asyncio.gather(first, second, update)

    assert in_a_queue(scenario, engine)[:2] == ["sampled 0", "quick 1"]
    assert engine.log == ["sampled 0", "updated 1", "quick 1"]


def test_a_call_over_its_time_is_ended_and_the_next_one_served():
    """Status 503 names the limit; the engine call is aborted, and its result is dropped."""
    engine = GateEngine()

    async def scenario(queue):
        with pytest.raises(HTTPException, match=r"ran for more than 3 s \(rollout.timeout_s\)") as caught:
            await queue.call(lambda held: held.generate())
        return caught.value.status_code, await queue.call(lambda held: held.quick())

    assert in_a_queue(scenario, engine, call_s=3.0) == (503, "quick 0")


def test_a_call_that_waits_too_long_never_reaches_the_engine():
    """An engine that can't abort continues the first call; the second times out before its turn."""
    engine = GateEngine(abort=False)

    async def scenario(queue):
        first = asyncio.create_task(queue.call(lambda held: held.generate()))
        await wait_until_sampling(engine)
        with pytest.raises(HTTPException, match="waited for the engine for more than"):
            await queue.call(lambda held: held.quick())
        with pytest.raises(HTTPException, match="ran for more than"):
            await first
        engine.end.set()
        return (await queue.update({}, 7))["policy_version"]

    assert in_a_queue(scenario, engine, call_s=0.3) == 7
    assert engine.log == ["sampled 0", "updated 7"]


def test_a_cancelled_call_gives_its_turn_on():
    """Whether it waited or ran."""
    engine = GateEngine()

    async def scenario(queue):
        running = asyncio.create_task(queue.call(lambda held: held.generate()))
        await wait_until_sampling(engine)
        waiting = asyncio.create_task(queue.call(lambda held: held.quick()))
        await asyncio.sleep(0)
        for task in (waiting, running):
            task.cancel()
        await asyncio.gather(waiting, running, return_exceptions=True)
        engine.end.set()
        return queue.calls, await queue.call(lambda held: held.quick())

    assert in_a_queue(scenario, engine) == (0, "quick 0")
    assert engine.log == ["sampled 0", "quick 0"]


@pytest.mark.parametrize(
    ("error", "status"), [(EngineError("no such token"), 422), (EngineUnreachableError("gone"), 503)]
)
def test_what_the_engine_refuses_is_the_clients_fault_and_what_breaks_is_not(error, status):
    """The status shows whether a retry can help."""

    def refuse(_):
        raise error

    async def scenario(queue):
        with pytest.raises(HTTPException, match=str(error)) as caught:
            await queue.call(refuse)
        return caught.value.status_code

    assert in_a_queue(scenario, GateEngine()) == status


def test_a_full_queue_is_told_to_come_back_but_weights_are_let_in():
    """Status 503 for the call too many; when one ends, there is room again."""
    engine = GateEngine()

    async def scenario(queue):
        first = asyncio.create_task(queue.call(lambda held: held.generate()))
        await wait_until_sampling(engine)
        with pytest.raises(HTTPException, match="too many calls") as caught:
            await queue.call(lambda held: held.quick())
        update = asyncio.create_task(queue.update({}, 1))
        await asyncio.sleep(0)
        engine.end.set()
        await asyncio.gather(first, update)
        return caught.value.status_code, await queue.call(lambda held: held.quick())

    assert in_a_queue(scenario, engine, waiting=1) == (503, "quick 1")


@pytest.mark.parametrize("abort", [True, False])
def test_a_server_that_stops_answers_every_call(abort):
    """The running call with what the abort leaves it, or else with 503; those that wait with 503."""
    engine = GateEngine(abort=abort)

    async def scenario(queue):
        running = asyncio.create_task(queue.call(lambda held: held.generate()))
        await wait_until_sampling(engine)
        waiting = asyncio.create_task(queue.call(lambda held: held.quick()))
        await asyncio.sleep(0)
        queue.stop()
        return await asyncio.gather(
            running, waiting, queue.call(lambda held: held.quick()), return_exceptions=True
        )

    first, *alternatives = in_a_queue(scenario, engine)
    assert first == "sampled 0" if abort else first.detail == "the server is stopping"
    assert [(refusal.status_code, refusal.detail) for refusal in alternatives] == [
        (503, "the server is stopping")
    ] * 2
