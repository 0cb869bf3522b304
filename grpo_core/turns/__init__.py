"""Engines that do more than sample completions: hold conversations, in every mode, or say which experts they took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError

if TYPE_CHECKING:
    from grpo_core.trainer import Trainer


def converse(trainer: Trainer) -> None:
    """Has a trainer's engine hold conversations, or tell its routing, if the settings ask for it.

    Raises:
        ConfigError: The environment is not there.
    """
    options: Any = trainer.config.rollout
    if options.replay_experts:
        _route(trainer, options.max_batch)
    if not options.environment:
        return
    from grpo_core.turns.engine import TurnsEngine
    from grpo_core.turns.environment import environment

    reply, shared = environment(options.environment), trainer.world.shared

    def conversing(own: Any, *, each: bool = False) -> Any:
        return TurnsEngine(shared(own, each=each), reply, options.turn_tokens)

    trainer.shared = conversing  # type: ignore[assignment]


def _route(trainer: Trainer, max_batch: int) -> None:
    from grpo_core.experts.engine import RoutedEngine

    shared = trainer.world.shared
    if trainer.world.size > 1:
        raise ConfigError(
            "rollout.replay_experts: routing is told within one process; start the run without torchrun"
        )

    def routing(own: Any, *, each: bool = False) -> Any:
        return RoutedEngine(shared(own, each=each), trainer.policy.causal, max_batch)

    trainer.shared = routing  # type: ignore[assignment]
