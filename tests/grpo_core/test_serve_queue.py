"""A rollout server's engine thread runs calls in order, limits their time and number, and goes on if one is cancelled.

When the server stops, its calls get status 503.
"""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi import HTTPException

from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.server.access import Limits
from grpo_core.rollout.server.app import EngineThread


class GateEngine:
    """A fake engine whose `generate` lasts until it is released."""

    def __init__(self) -> None:
        self.policy_version, self.log = 0, []
        self.generate_begun, self.generate_may_end = threading.Event(), threading.Event()

    def generate(self) -> str:
        self.generate_begun.set()
        assert self.generate_may_end.wait(500)
        return self.record("sampled")

    def record(self, what: str = "quick") -> str:
        self.log.append(f"{what} {self.policy_version}")
        return self.log[-1]

    def update_weights(self, tensors, version: int) -> None:
        self.policy_version = version
        self.record("updated")


def run_scenario(scenario, engine, **options):
    """Run a scenario with the thread of an engine, in an event loop of its own."""

    async def run():
        with ThreadPoolExecutor(1) as thread:
            try:
                return await scenario(EngineThread(engine, thread, Limits(**{"waiting": 4, **options})))
            finally:
                engine.generate_may_end.set()

    return asyncio.run(run())


async def start_sampling(engine, thread) -> asyncio.Task:
    """Start a call, and wait until the engine is in `generate`."""
    task = asyncio.create_task(thread.call(GateEngine.generate))
    assert await asyncio.to_thread(engine.generate_begun.wait, 500)
    return task


def test_calls_and_updates_run_in_order():
    """An update waits for the running call, and later calls are sampled from the new weights."""
    engine = GateEngine()

    async def scenario(thread):
        tasks = [await start_sampling(engine, thread), asyncio.create_task(thread.update({}, 1))]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(thread.call(GateEngine.record)))
        done, _ = await asyncio.wait(tasks, timeout=0.2)
        assert not done
        engine.generate_may_end.set()
        return await asyncio.gather(*tasks)

    sampled, updated, quick = run_scenario(scenario, engine)
    assert (sampled, updated["policy_version"], quick) == ("sampled 0", 1, "quick 1")
    assert engine.log == ["sampled 0", "updated 1", "quick 1"]


def test_call_over_its_time_limit_gets_status_503():
    """A running call goes on without its client, a waiting one never starts, and later calls are served."""
    engine = GateEngine()

    async def scenario(thread):
        calls = [await start_sampling(engine, thread), asyncio.create_task(thread.call(GateEngine.record))]
        refusals = await asyncio.gather(*calls, return_exceptions=True)
        engine.generate_may_end.set()
        return refusals, (await thread.update({}, 7))["policy_version"]

    refusals, version = run_scenario(scenario, engine, call_s=0.5)
    detail = "no answer of the engine in 0.5 s (rollout.timeout_s)"
    assert [(refusal.status_code, refusal.detail) for refusal in refusals] == [(503, detail)] * 2
    assert (version, engine.log) == (7, ["sampled 0", "updated 7"])


def test_cancelled_call_passes_its_turn_on():
    """When a waiting or running call is cancelled, the next call is served."""
    engine = GateEngine()

    async def scenario(thread):
        running = await start_sampling(engine, thread)
        waiting = asyncio.create_task(thread.call(GateEngine.record))
        await asyncio.sleep(0)
        for task in (waiting, running):
            task.cancel()
        await asyncio.gather(waiting, running, return_exceptions=True)
        engine.generate_may_end.set()
        return thread.calls, await thread.call(GateEngine.record)

    assert run_scenario(scenario, engine) == (0, "quick 0")
    assert engine.log == ["sampled 0", "quick 0"]


def test_refusal_of_the_engine_gives_status_422():
    """The engine's refusal gives status 422, because a retry would not help, unlike after status 503."""

    def refuse(_):
        raise EngineError("no such token")

    async def scenario(thread):
        with pytest.raises(HTTPException, match="no such token") as caught:
            await thread.call(refuse)
        return caught.value.status_code

    assert run_scenario(scenario, GateEngine()) == 422


def test_full_queue_gives_status_503_except_for_weights():
    """A full queue refuses calls but takes weights; when a call ends, there is room again."""
    engine = GateEngine()

    async def scenario(thread):
        first = await start_sampling(engine, thread)
        with pytest.raises(HTTPException, match="too many calls") as caught:
            await thread.call(GateEngine.record)
        update = asyncio.create_task(thread.update({}, 1))
        await asyncio.sleep(0)
        engine.generate_may_end.set()
        await asyncio.gather(first, update)
        return caught.value.status_code, await thread.call(GateEngine.record)

    assert run_scenario(scenario, engine, waiting=1) == (503, "quick 1")


def test_stopping_server_answers_every_call():
    """Running and waiting calls get status 503, and so do calls that come later."""
    engine = GateEngine()

    async def scenario(thread):
        calls = [await start_sampling(engine, thread), asyncio.create_task(thread.call(GateEngine.record))]
        await asyncio.sleep(0)
        thread.stopping.set()
        return await asyncio.gather(*calls, thread.call(GateEngine.record), return_exceptions=True)

    refusals = run_scenario(scenario, engine)
    assert {(refusal.status_code, refusal.detail) for refusal in refusals} == {
        (503, "the server is stopping")
    }
    assert len(refusals) == 3
