"""Conversations in place of single completions, where `rollout.environment` is set, in every mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_core.trainer import Trainer


def converse(trainer: Trainer) -> None:
    """Has a trainer's engine hold conversations, if the settings ask for it.

    Raises:
        ConfigError: The environment is not there.
    """
    options: Any = trainer.config.rollout
    if not options.environment:
        return
    from grpo_core.turns.engine import TurnsEngine
    from grpo_core.turns.environment import environment

    reply, shared = environment(options.environment), trainer.world.shared

    def conversing(own: Any, *, each: bool = False) -> Any:
        return TurnsEngine(shared(own, each=each), reply, options.turn_tokens)

    trainer.shared = conversing  # type: ignore[assignment]
