"""Async: the engine samples the next rollout in its own process while the trainer trains on this one.

The next rollout then comes from the policy before this update: its tokens are `train.iterations` versions old
when they are trained on. With `max_staleness = 0` the engine waits for the update instead, and every number is
that of colocate.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from grpo_core.engines.process import ProcessEngine

if TYPE_CHECKING:
    from grpo_core.trainer import Trainer


def run(trainer: Trainer) -> None:
    """Publish, ask for the next rollout, train on the one that has come; and again."""
    config = trainer.config
    ahead = config.train.iterations <= config.rollout.max_staleness
    with closing(ProcessEngine(trainer.engine_spec(), timeout_s=config.rollout.timeout_s)) as engine:
        sync = trainer.publisher(engine)
        trainer.publish(sync)
        coming = trainer.rollout(0)
        engine.start_generate(coming.requests, trainer.sampling)
        for step in range(config.train.steps):
            rollout, more = coming, step + 1 < config.train.steps
            with trainer.timed("rollout"):  # the part of it that the trainer had to wait for
                completions = engine.finish_generate()
            if more:
                coming = trainer.rollout(step + 1)
            if more and ahead:
                if step:
                    trainer.publish(sync)
                engine.start_generate(coming.requests, trainer.sampling)
            trainer.learn(rollout, completions)
            if more and not ahead:
                trainer.publish(sync)
                engine.start_generate(coming.requests, trainer.sampling)
