"""The only way to a server's engine: one call at a time, in one thread, behind a bounded queue."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
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
_AGAIN_S = 0.05


class Owner:
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
        self.calls = 0
        self._call_s, self._aborts = call_s, on_update == "abort"
        self._turns, self._stopped = _Turns(), False

    async def call(self, function: Callable[[Engine], Any]) -> Any:
        """Runs `function(engine)` in the engine's thread.

        Raises:
            HTTPException: 422: the engine refused. 503: too many calls wait, or this one took too long.
        """
        if self.calls >= self._most:
            raise HTTPException(503, "too many calls are waiting for the engine; try again later")
        self.calls += 1
        try:
            return await self._in_turn(function, _CALL)
        finally:
            self.calls -= 1

    async def update(self, function: Callable[[Engine], Any]) -> Any:
        """As `call`, for what changes the weights: next in turn, and never given up once it has begun."""
        return await self._in_turn(function, _UPDATE)

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

    async def _in_turn(self, function: Callable[[Engine], Any], priority: int) -> Any:
        end = asyncio.get_running_loop().time() + self._call_s
        await self._turn(priority, end)
        try:
            return await self._run(function, math.inf if priority == _UPDATE else end)
        except (EngineTimeoutError, EngineUnreachableError) as error:
            raise HTTPException(503, str(error)) from error
        except EngineError as error:
            raise HTTPException(422, str(error)) from error

    async def _turn(self, priority: int, end: float) -> None:
        """Waits until nothing runs and nobody goes before."""
        turn = asyncio.ensure_future(self._turns.take(priority))
        try:
            await asyncio.sleep(0)  # a free engine is had at once
            while not turn.done() and self._may_wait(end):
                if self._aborts and priority == _UPDATE:
                    self.abort()
                await self._wait(turn, end)
        except BaseException:
            self._leave(turn)
            raise
        if self._stopped or not turn.done():
            self._leave(turn)
            raise self._too_long("waited for the engine")

    async def _run(self, function: Callable[[Engine], Any], end: float) -> Any:
        """In the engine's thread; the turn goes on when the function has ended, whoever still waits for it."""
        running = asyncio.get_running_loop().run_in_executor(self._thread, function, self._engine)
        running.add_done_callback(self._ended)
        can_abort = self._engine.capabilities.abort
        while not running.done() and (self._may_wait(end) or (self._stopped and can_abort)):
            await self._wait(running, end)
            if self._stopped and can_abort:
                self._engine.abort()
        if running.done():
            return running.result()
        if can_abort:
            self._engine.abort()
        raise self._too_long("ran")

    def _may_wait(self, end: float) -> bool:
        return not self._stopped and asyncio.get_running_loop().time() < end

    async def _wait(self, future: asyncio.Future[Any], end: float) -> None:
        # Not longer than a moment: an abort, if there is to be one, is said again and again, as a call that is just
        # about to begin is not yet there to be ended.
        left = end - asyncio.get_running_loop().time()
        await asyncio.wait({future}, timeout=max(min(left, _AGAIN_S), 0))

    def _leave(self, turn: asyncio.Task[None]) -> None:
        if not turn.cancel():  # it was given already
            self._turns.give()

    def _ended(self, running: asyncio.Future[Any]) -> None:
        running.exception()  # seen, though nobody may be waiting for it any more
        self._turns.give()

    def _too_long(self, did: str) -> HTTPException:
        if self._stopped:
            return HTTPException(503, "the server is stopping")
        return HTTPException(503, f"the call {did} for more than {self._call_s:g} s (rollout.timeout_s)")


class _Turns:
    """Who is at the engine."""

    def __init__(self) -> None:
        self._taken, self._numbers = False, itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    async def take(self, priority: int) -> None:
        """Waits for the turn: the smallest number first, then who came first."""
        if not self._taken:
            self._taken = True
            return
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was given at this very moment
                self.give()
            raise

    def give(self) -> None:
        """Lets the next one go on."""
        while self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False


class Stamped:
    """An engine whose weights have a stamp; all else is the engine's own.

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
