"""Define the training loops of the three rollout modes, in a form that is easy to compare."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from grpo_core.modes.ahead import Ahead
from grpo_core.modes.connection import connection_to_server
from grpo_core.rollout.build import build_engine, engine_spec
from grpo_core.rollout.subprocess_engine import ProcessEngine
from grpo_core.trainer import Trainer


def train_colocate(trainer: Trainer) -> None:
    """Train with the engine in this process: wake it, publish weights, sample, put it to sleep, update the policy.

    All tokens come from the newest policy version.
    """
    in_process = build_engine(engine_spec(trainer.config, trainer.model_dir))
    with closing(trainer.share_engine(in_process, per_rank=True)) as engine:
        sync = trainer.publisher(engine)
        sleeper: Any = engine if engine.capabilities.sleep else None
        for _ in trainer.steps():
            if sleeper is not None:
                sleeper.wake()
            trainer.publish(sync)
            trainer.evaluate(engine)
            while not trainer.ready():
                rollout = trainer.next_rollout()
                with trainer.timed("rollout"):
                    completions = engine.generate(rollout.requests, trainer.sampling)
                trainer.add_rollout(rollout, completions)
            if sleeper is not None:
                sleeper.sleep()
            trainer.learn()


def train_async(trainer: Trainer) -> None:
    """Sample ahead in a separate engine process, with weights at most `max_staleness` versions old."""
    options, process = trainer.config.rollout, None
    if trainer.world.first:
        spec = engine_spec(trainer.config, trainer.model_dir)
        process = ProcessEngine(spec, timeout_s=options.timeout_s, sync=options.sync)
    with closing(trainer.share_engine(process)) as engine:
        ahead = Ahead(trainer, engine)
        for _ in trainer.steps():
            ahead.fill()
            while not trainer.ready():
                with trainer.timed("rollout"):  # only the time that the trainer waits
                    rollout, completions = ahead.next()
                trainer.add_rollout(rollout, completions, max_age=options.max_staleness)
                ahead.fill()
            trainer.learn()


def train_with_server(trainer: Trainer) -> None:
    """Train with an engine behind HTTP: publish weights, sample, update the policy. The server may restart."""
    with connection_to_server(trainer) as connection:
        for _ in trainer.steps():
            connection.publish()
            while not trainer.ready():
                rollout = trainer.next_rollout()
                with trainer.timed("rollout"):
                    completions = connection.generate(rollout)
                trainer.add_rollout(rollout, completions)
            trainer.learn()


LOOPS = {"colocate": train_colocate, "async": train_async, "server": train_with_server}


def run_mode(trainer: Trainer) -> None:
    """Train in the configured mode."""
    LOOPS[trainer.config.rollout.mode](trainer)
