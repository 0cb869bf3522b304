"""Engines that do more than sample completions: hold conversations, in every mode, or say which experts they took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError
from grpo_core.rollout.engine import EngineError

if TYPE_CHECKING:
    from grpo_core.trainer import Trainer


def converse(trainer: Trainer) -> None:
    """Has a trainer's engine hold conversations, or tell its routing, if the settings ask for it.

    Raises:
        ConfigError: The environment is not there.
    """
    options: Any = trainer.config.rollout
    if options.replay_experts:
        _route(trainer)
    if not options.environment:
        return
    from grpo_core.turns.engine import TurnsEngine
    from grpo_core.turns.environment import environment

    reply, shared = environment(options.environment), trainer.world.shared

    def conversing(own: Any, *, each: bool = False) -> Any:
        return TurnsEngine(shared(own, each=each), reply, options.turn_tokens)

    trainer.shared = conversing  # type: ignore[assignment]


def _route(trainer: Trainer) -> None:
    """Refuses engines that tell no routing; in whichever process, those that can tell it were built to.

    Raises:
        ConfigError: The model has no experts, or there are several processes.
    """
    from grpo_core.experts.engine import check

    check(trainer.policy.causal)
    shared = trainer.world.shared
    if trainer.world.size > 1:
        raise ConfigError(
            "rollout.replay_experts: routing is told to one process; start the run without torchrun"
        )

    def routing(own: Any, *, each: bool = False) -> Any:
        engine = shared(own, each=each)
        if not engine.capabilities.experts:
            why = engine.capabilities.why_not.get("experts", "it doesn't say why")
            raise EngineError(f"{engine.name} engine: it tells no routing (experts): {why}")
        return engine

    trainer.shared = routing  # type: ignore[assignment]
