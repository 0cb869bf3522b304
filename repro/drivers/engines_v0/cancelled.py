"""A coroutine that waits for `AsyncLLMEngine` is cancelled while its prefill runs."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from repro.base import InapplicableError, Work
from repro.drivers.engines_v0.asked import EVALUATION, TRAINING, work
from repro.drivers.engines_v0.engine import ServedEngine
from repro.drivers.engines_v0.moments import Hold
from repro.drivers.engines_v0.two_owners import NOTHING_TO_MITIGATE


class RolloutTimeoutError(Exception):
    """The caller gave a rollout up."""


def async_client_cancelled(mitigation: str | None) -> Work:
    """The client's coroutine alone is cancelled; the loop lives on, ends the step and aborts the requests."""
    if mitigation:
        raise InapplicableError(NOTHING_TO_MITIGATE)
    return asyncio.run(_cancelled_client(ServedEngine(), "the background loop ended the step, then aborted"))


async def _cancelled_client(engine: ServedEngine, note: str = "") -> Work:
    hold = Hold()
    training = asyncio.create_task(engine.ask(TRAINING, hold))
    await asyncio.to_thread(hold.inside.wait)
    training.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await training
    hold.go.set()
    return work([(EVALUATION, await engine.ask(EVALUATION))], [engine], note)


def async_loop_ended(mitigation: str | None) -> Work:
    """`asyncio.run` ends while a prefill runs, and with it the background loop; the next `asyncio.run` starts one."""
    engine = ServedEngine(mitigation)
    if mitigation == "server_mode":  # one loop for as long as the engine lives
        return asyncio.run(_cancelled_client(engine))
    with contextlib.suppress(RolloutTimeoutError):
        asyncio.run(_given_up(engine))
    if mitigation == "abort_in_flight":
        engine.abort_in_flight()
    if mitigation == "fresh_engine":
        engine = ServedEngine(mitigation)
    return work([(EVALUATION, asyncio.run(engine.ask(EVALUATION)))], [engine])


async def _given_up(engine: ServedEngine) -> None:
    hold = Hold()
    training = asyncio.create_task(_release(engine.ask(TRAINING, hold), hold))
    inside = asyncio.create_task(asyncio.to_thread(hold.inside.wait))
    await asyncio.wait([training, inside], return_when=asyncio.FIRST_COMPLETED)
    raise RolloutTimeoutError  # what still runs is cancelled by asyncio.run, the engine's step among it


async def _release(asking: Any, hold: Hold) -> None:
    """Lets the step go on once everything was cancelled: the thread that it runs in is waited for."""
    try:
        await asking
    finally:
        hold.go.set()
