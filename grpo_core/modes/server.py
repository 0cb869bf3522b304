"""Server: the engine is behind HTTP, on a server started for this run or one that runs elsewhere."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from grpo_core.engines.base import EngineError
from grpo_core.engines.remote import RemoteEngine
from grpo_core.serve.launch import ServerProcess
from grpo_core.serve.run import TOKEN_VARIABLE

if TYPE_CHECKING:
    from grpo_core.trainer import Trainer


def run(trainer: Trainer) -> None:
    """Publish, sample, train; and again. As colocate, but for where the engine is."""
    options = trainer.config.rollout
    host, port, own = options.host, options.port, None
    with ExitStack() as stack:
        if port == 0:
            own = stack.enter_context(
                closing(ServerProcess(trainer.engine_spec(), timeout_s=options.timeout_s))
            )
            host, port = own.host, own.port
        try:
            engine = RemoteEngine(
                host, port, timeout_s=options.timeout_s, token=os.environ.get(TOKEN_VARIABLE) or None
            )
            sync = trainer.publisher(engine)
            for step in range(trainer.config.train.steps):
                trainer.publish(sync)
                rollout = trainer.rollout(step)
                with trainer.timed("rollout"):
                    completions = engine.generate(rollout.requests, trainer.sampling)
                trainer.learn(rollout, completions)
        except EngineError as error:
            death = own.death() if own is not None else None
            if death is None:
                raise
            raise EngineError(f"{error} The server started for this run has ended with {death}.") from error
