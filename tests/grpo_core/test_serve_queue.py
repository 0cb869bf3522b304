"""The rollout server's queue orders calls and weight updates, limits their time, and lets them be cancelled."""

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


def run_with_queue(scenario, engine, **options):
    """Run a scenario with a queue before the engine, in its own event loop and thread."""

    async def run():
        with ThreadPoolExecutor(1) as thread:
            try:
                return await scenario(EngineQueue(engine, thread, Limits(**{"waiting": 4, **options})))
            finally:
                engine.end.set()

    return asyncio.run(run())


async def wait_until_sampling(engine) -> None:
    """Wait until the engine is in `generate`."""
    assert await asyncio.to_thread(engine.begun.wait, 500)


def test_update_goes_before_waiting_calls():
    """The update waits for the running call; waiting calls are sampled from the new weights."""
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

    assert run_with_queue(scenario, engine)[:2] == ["sampled 0", "quick 1"]
    assert engine.log == ["sampled 0", "updated 1", "quick 1"]


def test_call_over_its_time_limit_is_aborted():
    """Status 503 names the limit, the result is dropped, and the next call is served."""
    engine = GateEngine()

    async def scenario(queue):
        with pytest.raises(HTTPException, match=r"ran for more than 3 s \(rollout.timeout_s\)") as caught:
            await queue.call(lambda held: held.generate())
        return caught.value.status_code, await queue.call(lambda held: held.quick())

    assert run_with_queue(scenario, engine, call_s=3.0) == (503, "quick 0")


def test_waiting_call_times_out_before_the_engine():
    """The engine can't abort the first call, so the second times out in the queue."""
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

    assert run_with_queue(scenario, engine, call_s=0.3) == 7
    assert engine.log == ["sampled 0", "updated 7"]


def test_cancelled_call_passes_its_turn_on():
    """The next call is served when a waiting or running call is cancelled."""
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

    assert run_with_queue(scenario, engine) == (0, "quick 0")
    assert engine.log == ["sampled 0", "quick 0"]


@pytest.mark.parametrize(
    ("error", "status"), [(EngineError("no such token"), 422), (EngineUnreachableError("gone"), 503)]
)
def test_status_distinguishes_refusal_from_failure(error, status):
    """The status shows whether a retry can help."""

    def refuse(_):
        raise error

    async def scenario(queue):
        with pytest.raises(HTTPException, match=str(error)) as caught:
            await queue.call(refuse)
        return caught.value.status_code

    assert run_with_queue(scenario, GateEngine()) == status


def test_full_queue_gives_status_503_except_for_weights():
    """When a call ends, there is room again."""
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

    assert run_with_queue(scenario, engine, waiting=1) == (503, "quick 1")


@pytest.mark.parametrize("abort", [True, False])
def test_stopping_server_answers_every_call(abort):
    """The running call gets its aborted result or 503; waiting calls get 503."""
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

    first, *alternatives = run_with_queue(scenario, engine)
    assert first == "sampled 0" if abort else first.detail == "the server is stopping"
    assert [(refusal.status_code, refusal.detail) for refusal in alternatives] == [
        (503, "the server is stopping")
    ] * 2
