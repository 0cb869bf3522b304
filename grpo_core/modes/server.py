"""Server: the engine is behind HTTP, on a server started for this run or one that runs elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_core.modes.connection import connected

if TYPE_CHECKING:
    from grpo_core.trainer import Trainer


def run(trainer: Trainer) -> None:
    """Publish, sample, train; and again. As colocate, but for where the engine is, and that it may go away."""
    with connected(trainer) as server:
        for _ in trainer.steps():
            server.publish()
            while not trainer.ready():
                rollout = trainer.next_rollout()
                with trainer.timed("rollout"):
                    completions = server.generate(rollout)
                trainer.take(rollout, completions)
            trainer.learn()
