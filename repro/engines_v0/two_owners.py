"""Training is within its prefill when evaluation, in another thread, steps the same engine."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from repro import elsewhere
from repro.base import InapplicableError
from repro.engines_v0 import server
from repro.engines_v0.asked import EVALUATION, TRAINING, told, work
from repro.engines_v0.engine import Offline, Served, Stepped, Turn, options
from repro.engines_v0.moments import Hold

if TYPE_CHECKING:
    from repro.base import Work

NOTHING_TO_MITIGATE = "the failure does not come of this, so there is nothing to mitigate"


def llm_two_threads(mitigation: str | None) -> Work:
    """Two threads call `LLM.generate`."""
    if mitigation == "lock_around_step":
        raise InapplicableError("LLM.generate steps by itself: its caller has no step to lock")
    return _two_threads(mitigation, Offline)


def engine_two_threads(mitigation: str | None) -> Work:
    """Two threads step one `LLMEngine`."""
    return _two_threads(mitigation, Stepped)


def _two_threads(mitigation: str | None, kind: type[Offline | Stepped]) -> Work:
    if mitigation == "server_mode":
        options(None)
        return server.two_clients()
    engine = kind(mitigation)
    other = kind(mitigation) if mitigation == "fresh_engine" else engine
    hold, lock = Hold(), threading.Lock()
    turns: list[Turn | None] = [None, None]
    if mitigation == "lock_around_step":
        condition, order = threading.Condition(), ["training", "evaluation"]
        turns = [Turn(condition, order, name) for name in list(order)]

    def generate(whose: Any, asked: Any, processor: Any, turn: Any) -> list[Any]:
        if mitigation == "lock_around_generate":
            with lock:
                return list(whose.generate(asked, processor))
        return list(whose.generate(asked, processor, turn))

    with ThreadPoolExecutor(1) as training, ThreadPoolExecutor(1) as evaluation:
        trained = training.submit(generate, engine, TRAINING, hold, turns[0])
        _held(hold, trained)
        if mitigation == "abort_in_flight":
            engine.abort_in_flight()
        owner = training if mitigation == "one_owner" else evaluation
        evaluated = owner.submit(generate, other, EVALUATION, None, turns[1])
        if mitigation not in {"one_owner", "lock_around_generate", "lock_around_step"}:
            evaluated.exception()  # waits: all that evaluation does falls within training's step
        hold.go.set()
        return _seen(trained, evaluated, [engine, other] if other is not engine else [engine])


def _held(hold: Hold, trained: Future[list[Any]]) -> None:
    """Waits until training's step is held, or has failed before."""
    trained.add_done_callback(lambda _: hold.inside.set())
    hold.inside.wait()


def _seen(trained: Future[list[Any]], evaluated: Future[list[Any]], engines: list[Any]) -> Work:
    """Counts what both got, or raises what the first of them ended with and says what came of the other."""
    failures = [done.exception() for done in (evaluated, trained)]
    for failure, (name, other, asked) in zip(
        failures, [("training", trained, TRAINING), ("evaluation", evaluated, EVALUATION)], strict=True
    ):
        if failure is not None:
            error = other.exception()
            note = f"{name} got {told(asked, other.result()) if error is None else f'{type(error).__name__}'}"
            if not error and len(other.result()) != len(asked):
                note += ", without an error"
            raise elsewhere.failed(elsewhere.told(failure), note) from failure
    return work([(TRAINING, trained.result()), (EVALUATION, evaluated.result())], engines)


def async_two_clients(mitigation: str | None) -> Work:
    """Two tasks ask one `AsyncLLMEngine`; its background loop alone steps."""
    if mitigation:
        raise InapplicableError(NOTHING_TO_MITIGATE)
    engine = Served()

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
