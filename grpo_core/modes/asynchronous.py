"""Async: the engine samples ahead, in a process of its own, while the trainer trains (see `grpo_core.modes.ahead`)."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from grpo_core.modes.ahead import Ahead
from grpo_core.rollout.build import engine_spec
from grpo_core.rollout.subprocess_engine import ProcessEngine

if TYPE_CHECKING:
    from grpo_core.trainer import Trainer


def run(trainer: Trainer) -> None:
    """Keep the engine busy, train on what has come; and again."""
    options, own = trainer.config.rollout, None
    if trainer.world.first:
        spec = engine_spec(trainer.config, trainer.model_dir)
        own = ProcessEngine(spec, timeout_s=options.timeout_s, sync=options.sync)
    with closing(trainer.shared(own)) as engine:
        ahead = Ahead(trainer, engine)
        for _ in trainer.steps():
            ahead.fill()
            while not trainer.ready():
                with trainer.timed("rollout"):  # the part of it that the trainer has to wait for
                    rollout, completions = ahead.next()
                trainer.take(rollout, completions, max_age=options.max_staleness)
                ahead.fill()
            trainer.learn()
