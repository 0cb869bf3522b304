"""A server that samples for a run: started for it, or found at its address, and looked for again when it goes away."""

from __future__ import annotations

import math
import sys
import time
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, TypeVar

from grpo_core.learn.pool import StalenessError
from grpo_core.publish import SyncError
from grpo_core.rollout.build import engine_spec
from grpo_core.rollout.engine import EngineError, EngineTimeoutError, EngineUnreachableError
from grpo_core.rollout.http_client import LOST
from grpo_core.rollout.remote import check_trainable, engine_for
from grpo_core.rollout.server.launch import ServerProcess
from grpo_core.rollout.server.token import client_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from grpo_core.rollout.engine import Engine
    from grpo_core.trainer import Trainer
    from grpo_core.types import Completion, Rollout

T = TypeVar("T")


@contextmanager
def connected(trainer: Trainer) -> Iterator[Connection]:
    """The run's server; one that was started for it ends with it.

    Raises:
        EngineError: The server failed, for good; says how to go on.
        SyncError: It has other weights than it was sent; says how to go on.
        StalenessError: It answered by other weights; says how to go on.
    """
    options = trainer.config.rollout
    host, port, own, token = options.host, options.port, None, None
    with ExitStack() as stack:
        if port == 0 and trainer.world.first:
            spec = engine_spec(trainer.config, trainer.model_dir)
            own = stack.enter_context(closing(ServerProcess(spec, timeout_s=options.timeout_s)))
            host, port, token = own.host, own.port, own.token
        try:
            yield stack.enter_context(closing(Connection(trainer, host, port, token)))
        except (EngineError, SyncError, StalenessError) as error:
            death = own.death() if own is not None else None
            ended = "" if death is None else f" The server started for this run has ended with {death}."
            raise (type(error) if death is None else EngineError)(
                f"{str(error).rstrip('.')}.{ended} When the server at http://{host}:{port} is well again, --resume "
                "goes on from the last checkpoint."
            ) from error


class Connection:
    """A server that may go away and come back, with other weights or none.

    Every call is safe to repeat: a completion depends on its request alone, and an upload replaces everything.
    """

    def __init__(self, trainer: Trainer, host: str, port: int, token: str | None) -> None:
        self._trainer, self._host, self._port, self._token = trainer, host, port, token
        self._engine = self._connected()
        self._sync = trainer.publisher(self._engine)
        self._before, self._lost = self._sync.last, True

    def publish(self) -> None:
        """Sends the policy, and evaluates it if that is due."""
        # A version that is sent again is compared to the probe before it, as at the first time.
        self._before, self._lost = self._sync.last, True
        self._persistently(self._published)

    def generate(self, rollout: Rollout) -> list[Completion]:
        """Samples a rollout, from the version published last."""
        return self._persistently(lambda: self._sampled(rollout))

    def _published(self) -> None:
        if self._lost:
            self._trainer.publish(self._sync)
            self._lost = False
        self._trainer.evaluate(self._engine)

    def _sampled(self, rollout: Rollout) -> list[Completion]:
        self._published()
        completions = self._engine.generate(rollout.requests, self._trainer.sampling)
        if {version for c in completions for version in c.versions} != {self._trainer.version}:
            raise EngineUnreachableError(f"{self._engine.name} engine, generate: {LOST}")
        return completions

    def _persistently(self, call: Callable[[], T]) -> T:
        """Calls until there is an answer, or the time is up that began with the first failure."""
        deadline = math.inf
        while True:
            try:
                return call()
            except EngineUnreachableError as error:
                now, looking_s = time.monotonic(), self._trainer.config.rollout.reconnect_s
                if now > deadline:
                    raise
                if deadline < math.inf:
                    time.sleep(min(0.5, looking_s))  # it is there and fails: not at once again
                deadline = min(deadline, now + looking_s)
                self._reconnect(error, deadline)

    def close(self) -> None:
        """Takes down what the engine set up on this side."""
        self._engine.close()

    def _connected(self) -> Engine:
        trainer = self._trainer
        own: Engine | None = None
        if trainer.world.first:
            options, host, port = trainer.config.rollout, self._host, self._port
            # Read anew each time: a server that was started again may have made another one.
            token = self._token or client_token(options.token_file, host, port)
            own = engine_for(options, host, port, trainer.folder / "weights", token=token)
            check_trainable(own)
        return trainer.shared(own)

    def _reconnect(self, error: EngineUnreachableError, deadline: float) -> None:
        """Looks for the server until it is there again, or time is up."""
        options = self._trainer.config.rollout
        if not options.reconnect_s or not options.port or self._trainer.world.size > 1:
            raise error
        print(f"grpo_core: {error}; looking for {options.reconnect_s:g} s", file=sys.stderr)
        while True:
            try:
                self._engine.close()
                self._engine = self._connected()
                break
            except (EngineUnreachableError, EngineTimeoutError):
                if time.monotonic() > deadline:
                    raise error from None
                time.sleep(min(0.5, options.reconnect_s))
        self._sync = self._trainer.publisher(self._engine)
        self._sync.last, self._lost = self._before, True
