"""A prefill's step ends with an exception; its caller catches that, and uses the engine again."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from typing import Any

from repro.base import InapplicableError, Work
from repro.drivers import elsewhere
from repro.drivers.engines_v0 import server
from repro.drivers.engines_v0.asked import EVALUATION, TRAINING, work
from repro.drivers.engines_v0.engine import Offline, ServedEngine, Stepped, Turn, options
from repro.drivers.engines_v0.moments import FaultyProcessorError, fail, interrupt
from repro.drivers.engines_v0.two_owners import NOTHING_TO_MITIGATE


def llm_interrupted(mitigation: str | None) -> Work:
    """Ctrl-C within `LLM.generate`, as in a notebook; the next cell generates again."""
    if mitigation == "lock_around_step":
        raise InapplicableError("LLM.generate steps by itself: its caller has no step to lock")
    if mitigation == "server_mode":
        options(None)
        return server.interrupted_client()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return _reused(mitigation, Offline, interrupt(), KeyboardInterrupt)


def engine_step_raised(mitigation: str | None) -> Work:
    """A user's logits processor raises within `LLMEngine.step`."""
    if mitigation == "server_mode":
        raise InapplicableError("a server ends with a failed step: see async_step_raised")
    return _reused(mitigation, Stepped, fail(), FaultyProcessorError)


def _reused(
    mitigation: str | None, kind: type[Offline | Stepped], processor: Any, ends: type[BaseException]
) -> Work:
    engine = kind(mitigation)
    # One caller: a lock, of whichever extent, is free whenever it asks for it.
    lock: Any = threading.Lock() if mitigation == "lock_around_generate" else contextlib.nullcontext()
    with contextlib.suppress(ends), lock:
        engine.generate(TRAINING, processor, _turn(mitigation))
    if mitigation == "abort_in_flight":
        engine.abort_in_flight()
    if mitigation == "fresh_engine":
        engine = kind(mitigation)
    try:
        with lock:
            outputs = engine.generate(EVALUATION, None, _turn(mitigation))
    except AssertionError as error:
        raise elsewhere.failed(elsewhere.told(error), _once_more(engine)) from error
    return work([(EVALUATION, outputs)], [engine])


def _once_more(engine: Offline | Stepped) -> str:
    """Says what comes of catching the assertion, aborting all that is in flight then, and asking once more."""
    engine.abort_in_flight()
    done = work([(EVALUATION, engine.generate(EVALUATION))], [engine])
    return f"caught, everything aborted, asked once more: {done.describe()}"


def _turn(mitigation: str | None) -> Turn | None:
    return Turn(threading.Condition(), ["alone"], "alone") if mitigation == "lock_around_step" else None


def async_step_raised(mitigation: str | None) -> Work:
    """The same within `AsyncLLMEngine`'s background loop, which ends with it."""
    if mitigation:
        raise InapplicableError(NOTHING_TO_MITIGATE)
    engine = ServedEngine()

    async def both() -> tuple[str, str]:
        return await _end(engine.ask(TRAINING, fail())), await _end(engine.ask(EVALUATION))

    first, then = asyncio.run(both())
    return work([(EVALUATION, [])], note=f"the step's caller got {first}; whoever asks again gets {then}")


async def _end(asking: Any) -> str:
    try:
        await asking
    except Exception as error:  # noqa: BLE001 - which one it is, is what is told
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "an answer"
