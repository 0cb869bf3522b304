"""Connect to the rollout server of a run: start it or use a running one, and reconnect when it goes away."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from grpo_core.learn.pool import StalenessError
from grpo_core.publish import SyncError
from grpo_core.rollout.build import engine_spec
from grpo_core.rollout.engine import Engine, EngineError, EngineTimeoutError, EngineUnreachableError
from grpo_core.rollout.http_client import LOST
from grpo_core.rollout.remote import check_trainable, engine_for
from grpo_core.rollout.server.process import ServerProcess
from grpo_core.rollout.server.token import client_token
from grpo_core.trainer import Trainer
from grpo_core.types import Completion, Rollout


@contextmanager
def connection_to_server(trainer: Trainer) -> Iterator[Connection]:
    """Yield the connection to the run's server; a server that was started for the run ends with it.

    Raises:
        EngineError: The server failed permanently.
        SyncError: After an upload, the server's weights differ from those sent.
        StalenessError: A completion is from a policy version that is too old, or that was never published.

    Each message says how to resume the run.
    """
    options = trainer.config.rollout
    host, port, process, token = options.host, options.port, None, None
    with ExitStack() as stack:
        if port == 0 and trainer.world.first:
            spec = engine_spec(trainer.config, trainer.model_dir)
            process = stack.enter_context(closing(ServerProcess(spec, timeout_s=options.timeout_s)))
            host, port, token = process.host, process.port, process.token
        try:
            yield stack.enter_context(closing(Connection(trainer, host, port, token)))
        except (EngineError, SyncError, StalenessError) as error:
            death = process.death() if process is not None else None
            report = "" if death is None else f" The server started for this run has ended with {death}."
            raise (type(error) if death is None else EngineError)(
                f"{str(error).rstrip('.')}.{report} When the server at http://{host}:{port} is well again, --resume "
                "goes on from the last checkpoint."
            ) from error


class Connection:
    """A connection to a server that may go away and come back, with other weights or none.

    Every call is safe to repeat: a completion depends on its request alone, and an upload replaces everything.
    """

    def __init__(self, trainer: Trainer, host: str, port: int, token: str | None) -> None:
        self._trainer, self._host, self._port, self._token = trainer, host, port, token
        self._connect()
        self._before, self._lost = self._sync.last, True

    def publish(self) -> None:
        """Send the policy to the server, and evaluate it if that is due."""
        # If a version is sent again, its probe is compared with the previous version's, as the first time.
        self._before, self._lost = self._sync.last, True
        self._retry(self._publish_if_lost)

    def generate(self, rollout: Rollout) -> list[Completion]:
        """Sample a rollout from the version published last."""
        return list(self._retry(lambda: self._sample(rollout)))

    def _publish_if_lost(self) -> None:
        if self._lost:
            self._trainer.publish(self._sync)
            self._lost = False
        self._trainer.evaluate(self._engine)

    def _sample(self, rollout: Rollout) -> list[Completion]:
        self._publish_if_lost()
        completions = self._engine.generate(rollout.requests, self._trainer.sampling)
        if {version for c in completions for version in c.versions} != {self._trainer.version}:
            raise EngineUnreachableError(f"{self._engine.name} engine, generate: {LOST}")
        return completions

    def _retry(self, call: Callable[[], Any]) -> Any:
        """Call until there is an answer, or `reconnect_s` have passed since the first failure."""
        limit_s, deadline = self._trainer.config.rollout.reconnect_s, math.inf
        while True:
            try:
                return call()
            except EngineUnreachableError as error:
                now = time.monotonic()
                if now > deadline:
                    raise
                if deadline < math.inf:
                    time.sleep(min(0.5, limit_s))  # the server runs but fails: wait before the next call
                deadline = min(deadline, now + limit_s)
                self._reconnect(error, deadline)

    def close(self) -> None:
        """Free the client's resources."""
        self._engine.close()

    def _connect(self) -> None:
        trainer, options, address = self._trainer, self._trainer.config.rollout, (self._host, self._port)
        engine: Engine | None = None
        if trainer.world.first:
            # Read each time: a server that was started again may have made another one.
            token = self._token or client_token(options.token_file, *address)
            engine = engine_for(options, *address, trainer.folder / "weights", token=token)
            check_trainable(engine)
        self._engine = trainer.share_engine(engine)
        self._sync = trainer.publisher(self._engine)

    def _reconnect(self, error: EngineUnreachableError, deadline: float) -> None:
        """Try to connect until the server answers, or the deadline is over."""
        options = self._trainer.config.rollout
        if not options.reconnect_s or not options.port or self._trainer.world.size > 1:
            raise error
        print(f"grpo_core: {error}; looking for {options.reconnect_s:g} s", file=sys.stderr)
        self._engine.close()
        while True:
            try:
                self._connect()
                break
            except (EngineUnreachableError, EngineTimeoutError):
                if time.monotonic() > deadline:
                    raise error from None
                time.sleep(min(0.5, options.reconnect_s))
        self._sync.last, self._lost = self._before, True
