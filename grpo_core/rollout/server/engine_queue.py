"""The only way to a server's engine: one call at a time, in one thread, behind a bounded queue."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from fastapi import HTTPException

from grpo_core.rollout.engine import Engine, EngineError, EngineTimeoutError, EngineUnreachableError

_UPDATE, _CALL = 0, 1  # priorities: an update passes the calls that wait
_POLL_S = 0.01


class EngineQueue:
    """Runs calls in turn; weight updates pass the calls that wait, so these are sampled from the new version.

    The call that runs when weights arrive ends by itself (`on_update` = `wait`), or is aborted and answers with what it
    has (`abort`): a call is never sampled from two versions.

    Attributes:
        calls: Number of calls that run or wait, updates excluded.
        weights: Identifies the weights held: a new text at each update, empty before the first. Two clients may both
            have sent a version 3; a client that finds another text than its update returned was answered from somebody
            else's weights.
    """

    def __init__(
        self,
        engine: Engine,
        thread: Executor,
        waiting: int,
        *,
        call_s: float = 120.0,
        on_update: str = "wait",
    ) -> None:
        """`thread` has exactly one worker, which also built the engine; for the limits see `access.Limits`."""
        self._engine: Any = engine  # one with `capabilities.abort` is an `Aborter`, too
        self._thread, self._max_calls = thread, waiting
        self._call_s, self._update_aborts = call_s, on_update == "abort"
        self.calls, self.weights = 0, ""
        self._busy, self._stopped = False, False
        self._numbers, self._waiting = itertools.count(), list[tuple[int, int]]()

    async def call(self, function: Callable[[Engine], Any]) -> Any:
        """Run `function(engine)` in the engine's thread.

        Raises:
            HTTPException: 422: the engine refused. 503: too many calls wait, or this one took too long.
        """
        if self.calls >= self._max_calls:
            raise HTTPException(503, "too many calls are waiting for the engine; try again later")
        self.calls += 1
        try:
            return await self._run(function, _CALL)
        finally:
            self.calls -= 1

    async def update(self, function: Callable[[Engine], Any]) -> Any:
        """Run a function that changes the weights: next in turn, and never given up once it has started."""

        def load(engine: Engine) -> Any:
            previous, self.weights = self.weights, secrets.token_hex(8)
            try:
                return function(engine)
            except EngineError:
                self.weights = previous  # a refused update changes nothing
                raise

        return await self._run(load, _UPDATE)

    def abort(self) -> None:
        """Make the running call end with what it has.

        Raises:
            HTTPException: 422: the engine can't.
        """
        if not self._engine.capabilities.abort:
            reason = self._engine.capabilities.why_not.get("abort", "it has no way to")
            raise HTTPException(422, f"the {self._engine.name} engine can't end a running call: {reason}")
        self._engine.abort()

    def stop(self) -> None:
        """End all calls: the running one by an abort if the engine can, the others by status 503."""
        self._stopped = True

    async def _run(self, function: Callable[[Engine], Any], priority: int) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._call_s
        await self._wait_for_turn(priority, deadline)
        self._busy = True
        running = loop.run_in_executor(self._thread, function, self._engine)
        running.add_done_callback(self._end_turn)  # also if no client waits for the answer any more
        can_abort = self._engine.capabilities.abort
        while not running.done():
            expired = priority == _CALL and loop.time() >= deadline
            # Repeated, because a call that is about to start can't be aborted yet.
            if can_abort and (expired or self._stopped):
                self._engine.abort()
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
                if self._update_aborts and priority == _UPDATE:
                    self.abort()
                await asyncio.sleep(_POLL_S)
        finally:
            self._waiting.remove(ticket)

    def _end_turn(self, running: asyncio.Future[Any]) -> None:
        running.exception()  # marks it as retrieved
        self._busy = False

    def _unavailable(self, activity: str) -> HTTPException:
        if self._stopped:
            return HTTPException(503, "the server is stopping")
        return HTTPException(503, f"the call {activity} for more than {self._call_s:g} s (rollout.timeout_s)")
