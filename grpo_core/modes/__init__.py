"""The three rollout modes: three short loops, to be read side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_core.trainer import Trainer


def run(trainer: Trainer) -> None:
    """Trains in the mode that is configured."""
    mode = trainer.config.rollout.mode
    if mode == "colocate":
        from grpo_core.modes.colocate import run as loop
    elif mode == "async":
        from grpo_core.modes.asynchronous import run as loop
    else:
        from grpo_core.modes.server import run as loop
    loop(trainer)
