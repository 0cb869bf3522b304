"""Colocate: trainer and engine in one process take turns. No token is ever older than the policy it trains."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from grpo_core.rollout.build import build_engine, engine_spec
from grpo_core.rollout.engine import Sleeper

if TYPE_CHECKING:
    from grpo_core.trainer import Trainer


def run(trainer: Trainer) -> None:
    """Wake, publish, sample, sleep, train; and again."""
    own = build_engine(engine_spec(trainer.config, trainer.model_dir))
    with closing(trainer.shared(own, each=True)) as engine:
        sync = trainer.publisher(engine)
        sleeper = engine if engine.capabilities.sleep and isinstance(engine, Sleeper) else None
        for _ in trainer.steps():
            if sleeper is not None:
                sleeper.wake()
            trainer.publish(sync)
            trainer.evaluate(engine)
            while not trainer.ready():
                rollout = trainer.next_rollout()
                with trainer.timed("rollout"):
                    completions = engine.generate(rollout.requests, trainer.sampling)
                trainer.take(rollout, completions)
            if sleeper is not None:
                sleeper.sleep()
            trainer.learn()
