"""The only way to a server's engine: one call at a time, in one thread, behind a bounded queue."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import secrets
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException

from grpo_core.rollout.engine import EngineError, EngineTimeoutError, EngineUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Executor

    import torch

    from grpo_core.rollout.engine import Engine

_UPDATE, _CALL = 0, 1  # an update passes the calls that wait
_AGAIN_S = 0.05  # between two looks at the clock, and between two aborts of the same call


class EngineQueue:
    """Weights pass the calls that wait, so these are sampled from the new version.

    The call that runs when weights arrive ends first (`on_update` = `wait`), or is made to end with what it has
    (`abort`): a call is never sampled from two versions.

    Attributes:
        calls: How many run or wait, updates aside.
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
        """`thread` has exactly one worker, which also built the engine; `call_s` limits each call, see `Limits`."""
        self._engine, self._thread, self._most = engine, thread, waiting
        self._call_s, self._aborts = call_s, on_update == "abort"
        self.calls, self._busy, self._stopped = 0, False, False
        self._numbers, self._waiting = itertools.count(), list[tuple[int, int]]()
        self._changed = asyncio.Event()

    async def call(self, function: Callable[[Engine], Any]) -> Any:
        """Runs `function(engine)` in the engine's thread.

        Raises:
            HTTPException: 422: the engine refused. 503: too many calls wait, or this one took too long.
        """
        if self.calls >= self._most:
            raise HTTPException(503, "too many calls are waiting for the engine; try again later")
        self.calls += 1
        try:
            return await self._run(function, _CALL)
        finally:
            self.calls -= 1

    async def update(self, function: Callable[[Engine], Any]) -> Any:
        """As `call`, for what changes the weights: next in turn, and never given up once it has begun."""
        return await self._run(function, _UPDATE)

    def abort(self) -> None:
        """Makes the running call end with what it has.

        Raises:
            HTTPException: 422: the engine can't.
        """
        if not self._engine.capabilities.abort:
            why = self._engine.capabilities.why_not.get("abort", "it has no way to")
            raise HTTPException(422, f"the {self._engine.name} engine can't end a running call: {why}")
        self._engine.abort()

    def stop(self) -> None:
        """Ends all calls: the running one by an abort, if the engine can, the others by status 503."""
        self._stopped = True

    async def _run(self, function: Callable[[Engine], Any], priority: int) -> Any:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._call_s
        await self._wait_for_turn(priority, end)
        self._busy = True
        running = loop.run_in_executor(self._thread, function, self._engine)
        running.add_done_callback(self._finished)  # the turn goes on then, whoever still waits for the answer
        can_abort = self._engine.capabilities.abort
        while not running.done():
            late = priority == _CALL and loop.time() >= end
            # Again and again: a call that is just about to begin is not yet there to be ended.
            if can_abort and (late or self._stopped):
                self._engine.abort()
            if late or (self._stopped and not can_abort):
                raise self._too_long("ran")
            await asyncio.wait({running}, timeout=_AGAIN_S)
        try:
            return running.result()
        except (EngineTimeoutError, EngineUnreachableError) as error:
            raise HTTPException(503, str(error)) from error
        except EngineError as error:
            raise HTTPException(422, str(error)) from error

    async def _wait_for_turn(self, priority: int, end: float) -> None:
        """Waits until nothing runs and nobody goes before: the smallest priority first, then who came first."""
        ticket = (priority, next(self._numbers))
        heapq.heappush(self._waiting, ticket)
        try:
            while self._busy or self._waiting[0] != ticket or self._stopped:
                if self._stopped or asyncio.get_running_loop().time() >= end:
                    raise self._too_long("waited for the engine")
                if self._aborts and priority == _UPDATE:
                    self.abort()
                self._changed.clear()
                waiting = asyncio.ensure_future(self._changed.wait())
                try:
                    await asyncio.wait({waiting}, timeout=_AGAIN_S)
                finally:
                    waiting.cancel()
        finally:
            self._waiting.remove(ticket)
            heapq.heapify(self._waiting)
            self._changed.set()

    def _finished(self, running: asyncio.Future[Any]) -> None:
        running.exception()  # seen, though nobody may be waiting for it any more
        self._busy = False
        self._changed.set()

    def _too_long(self, did: str) -> HTTPException:
        if self._stopped:
            return HTTPException(503, "the server is stopping")
        return HTTPException(503, f"the call {did} for more than {self._call_s:g} s (rollout.timeout_s)")


class Stamped:
    """An engine whose weights have a stamp, as a version's number does not tell one client's weights from another's.

    Attributes:
        weights: A new text at every update, which its sender is given, and every answer has: whoever finds
            another one in an answer was answered from weights of somebody else. Empty before the first update.
    """

    def __init__(self, engine: Engine) -> None:
        """Takes an engine as it was built."""
        self._engine, self.weights = engine, ""

    def __getattr__(self, name: str) -> Any:
        """Everything else of the engine."""
        return getattr(self._engine, name)

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """As the engine's. An update that it refuses changes nothing, the stamp neither."""
        before, self.weights = self.weights, secrets.token_hex(8)
        try:
            self._engine.update_weights(tensors, version)
        except EngineError:
            self.weights = before
            raise
