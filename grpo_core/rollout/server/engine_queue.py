"""Queue the calls of a server's engine: one at a time, in one thread, with a bounded number waiting."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

import torch
from fastapi import HTTPException

from grpo_core.rollout.engine import Engine, EngineError, EngineTimeoutError, EngineUnreachableError
from grpo_core.rollout.server.access import Limits

_UPDATE, _CALL = 0, 1  # priorities: an update passes the calls that wait
_POLL_S = 0.01


class EngineQueue:
    """Runs calls in turn; weight updates overtake waiting calls, which are then sampled from the new version.

    Weights that arrive wait for the call that runs, so a call is never sampled from two versions.

    Attributes:
        engine: The engine, for properties that can be read at any time.
        limits: Limits of every request.
        calls: Number of calls that run or wait, updates excluded.
        weights: Id of the loaded weights, sent with each answer: a new random text at each update, empty before the
            first. Two clients may both upload a version 3; the id shows a client that an answer is from the weights of
            the other.
    """

    def __init__(self, engine: Engine, thread: Executor, limits: Limits) -> None:
        """`thread` has exactly one worker, which also built the engine."""
        self.engine: Any = engine  # one with `capabilities.abort` is an `Aborter`, too
        self.limits, self._thread = limits, thread
        self.calls, self.weights = 0, ""
        self._busy, self._stopped = False, False
        self._numbers, self._waiting = itertools.count(), list[tuple[int, int]]()

    async def call(self, function: Callable[[Engine], Any]) -> Any:
        """Run `function(engine)` in the engine's thread.

        Raises:
            HTTPException: 422: the engine refused. 503: too many calls wait, or this one took too long.
        """
        if self.calls >= self.limits.waiting:
            raise HTTPException(503, "too many calls are waiting for the engine; try again later")
        self.calls += 1
        try:
            return await self._run(function, _CALL)
        finally:
            self.calls -= 1

    async def update(self, tensors: Mapping[str, torch.Tensor], version: int) -> dict[str, int | str]:
        """Load a policy version before all waiting calls; once started, an update has no time limit."""

        def load(engine: Engine) -> dict[str, int | str]:
            previous, self.weights = self.weights, secrets.token_hex(8)
            try:
                engine.update_weights(tensors.items(), version)
            except EngineError:
                self.weights = previous  # a refused update changes nothing
                raise
            return {"policy_version": engine.policy_version, "weights": self.weights}

        return dict(await self._run(load, _UPDATE))

    def stop(self) -> None:
        """End all calls: the running one by an abort if the engine can, the others by status 503."""
        self._stopped = True

    async def _run(self, function: Callable[[Engine], Any], priority: int) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.limits.call_s
        await self._wait_for_turn(priority, deadline)
        self._busy = True
        running = loop.run_in_executor(self._thread, function, self.engine)
        running.add_done_callback(self._end_turn)  # also if no client waits for the answer any more
        can_abort = self.engine.capabilities.abort
        while not running.done():
            expired = priority == _CALL and loop.time() >= deadline
            # Repeated, because a call that is about to start can't be aborted yet.
            if can_abort and (expired or self._stopped):
                self.engine.abort()
            if expired or (self._stopped and not can_abort):
                raise self._unavailable("ran")
            await asyncio.wait({running}, timeout=_POLL_S)
        try:
            return running.result()
        except (EngineTimeoutError, EngineUnreachableError) as error:
            raise HTTPException(503, str(error)) from error
        except EngineError as error:
            raise HTTPException(422, str(error)) from error

    async def _wait_for_turn(self, priority: int, deadline: float) -> None:
        """Wait until nothing runs and no call goes first: the smallest priority, then the earliest."""
        ticket = (priority, next(self._numbers))
        self._waiting.append(ticket)
        try:
            while self._stopped or self._busy or min(self._waiting) != ticket:
                if self._stopped or asyncio.get_running_loop().time() >= deadline:
                    raise self._unavailable("waited for the engine")
                await asyncio.sleep(_POLL_S)
        finally:
            self._waiting.remove(ticket)

    def _end_turn(self, running: asyncio.Future[Any]) -> None:
        running.exception()  # marks it as retrieved
        self._busy = False

    def _unavailable(self, activity: str) -> HTTPException:
        if self._stopped:
            return HTTPException(503, "the server is stopping")
        return HTTPException(
            503, f"the call {activity} for more than {self.limits.call_s:g} s (rollout.timeout_s)"
        )
