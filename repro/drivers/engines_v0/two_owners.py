"""Training is within its prefill when evaluation, in another thread, steps the same engine."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from repro.base import InapplicableError, Work
from repro.drivers import elsewhere
from repro.drivers.engines_v0 import server
from repro.drivers.engines_v0.asked import EVALUATION, TRAINING, Asked, told, work
from repro.drivers.engines_v0.engine import Offline, ServedEngine, Stepped, Turn, options
from repro.drivers.engines_v0.moments import Hold

Asks = tuple[Sequence[Asked], Sequence[Asked]]
NOTHING_TO_MITIGATE = "the failure does not come of this, so there is nothing to mitigate"


def llm_two_threads(mitigation: str | None) -> Work:
    """Two threads call `LLM.generate`."""
    if mitigation == "lock_around_step":
        raise InapplicableError("LLM.generate steps by itself: its caller has no step to lock")
    return two_threads(mitigation, Offline)


def engine_two_threads(mitigation: str | None) -> Work:
    """Two threads step one `LLMEngine`."""
    return two_threads(mitigation, Stepped)


def two_threads(
    mitigation: str | None, kind: type[Offline | Stepped], asks: Asks = (TRAINING, EVALUATION)
) -> Work:
    """Holds training's prefill, and has evaluation generate the way the mitigation says.

    Args:
        mitigation: or None.
        kind: of the engine.
        asks: what training asks, and what evaluation does.

    Raises:
        ElsewhereError: what one of the two threads ended with.
    """
    if mitigation == "server_mode":
        options(None)
        return server.two_clients()
    engine = kind(mitigation)
    other = kind(mitigation) if mitigation == "fresh_engine" else engine
    hold, turns = Hold(), _turns(mitigation)
    lock: Any = threading.Lock() if mitigation == "lock_around_generate" else contextlib.nullcontext()

    def generate(whose: Offline | Stepped, which: int, processor: Hold | None) -> list[Any]:
        with lock:
            return whose.generate(asks[which], processor, turns[which])

    with ThreadPoolExecutor(1) as training, ThreadPoolExecutor(1) as evaluation:
        trained = training.submit(generate, engine, 0, hold)
        _held(hold, trained)
        if mitigation == "abort_in_flight":
            engine.abort_in_flight()
        owner = training if mitigation == "one_owner" else evaluation
        evaluated = owner.submit(generate, other, 1, None)
        if mitigation not in {"one_owner", "lock_around_generate", "lock_around_step"}:
            evaluated.exception()  # waits: all that evaluation does falls within training's step
        hold.go.set()
        return _seen(asks, (trained, evaluated), [engine] if other is engine else [engine, other])


def _turns(mitigation: str | None) -> list[Turn | None]:
    if mitigation != "lock_around_step":
        return [None, None]
    condition, order = threading.Condition(), ["training", "evaluation"]
    return [Turn(condition, order, name) for name in list(order)]


def _held(hold: Hold, trained: Future[list[Any]]) -> None:
    """Waits until training's step is held, or has failed before."""
    trained.add_done_callback(lambda _: hold.inside.set())
    hold.inside.wait()


def _seen(asks: Asks, done: tuple[Future[list[Any]], Future[list[Any]]], engines: list[Any]) -> Work:
    """Counts what both got, or raises what evaluation, else training, ended with and says what the other got."""
    for one, other, name in ((1, 0, "training"), (0, 1, "evaluation")):
        failure, error = done[one].exception(), done[other].exception()
        if failure is not None:
            got = f"{type(error).__name__}: {error}" if error else told(asks[other], done[other].result())
            note = f"{name} got {got}" + ("" if error else ", without an error")
            raise elsewhere.failed(elsewhere.told(failure), note) from failure
    return work([(asks[0], done[0].result()), (asks[1], done[1].result())], engines)


def async_two_clients(mitigation: str | None) -> Work:
    """Two tasks ask one `AsyncLLMEngine`; its background loop alone steps."""
    if mitigation:
        raise InapplicableError(NOTHING_TO_MITIGATE)
    engine = ServedEngine()

    async def both() -> Work:
        hold = Hold()
        training = asyncio.create_task(engine.ask(TRAINING, hold))
        await asyncio.to_thread(hold.inside.wait)
        evaluation = asyncio.create_task(engine.ask(EVALUATION))
        await asyncio.sleep(0)  # evaluation's requests are queued; the step is still held
        hold.go.set()
        callers = [(TRAINING, await training), (EVALUATION, await evaluation)]
        return work(callers, [engine], "AsyncLLMEngine's background loop alone steps; both only wait for it")

    return asyncio.run(both())
