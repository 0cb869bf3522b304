"""Colocate: trainer and engine in one process take turns. No token is ever older than the policy it trains."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from grpo_core.engines import build_engine

if TYPE_CHECKING:
    from grpo_core.trainer import Trainer


def run(trainer: Trainer) -> None:
    """Publish, sample, train; and again."""
    with closing(build_engine(trainer.engine_spec())) as engine:
        sync = trainer.publisher(engine)
        for step in range(trainer.config.train.steps):
            trainer.publish(sync)
            rollout = trainer.rollout(step)
            with trainer.timed("rollout"):
                completions = engine.generate(rollout.requests, trainer.sampling)
            trainer.learn(rollout, completions)
