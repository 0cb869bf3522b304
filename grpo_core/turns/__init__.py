"""Engines that do more than sample completions: hold conversations, in every mode, or say which experts they took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError
from grpo_core.rollout.engine import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpo_core.trainer import Trainer
    from grpo_core.types import Completion, Rollout


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
    """Refuses engines that tell no routing, or a wrong one; in whichever process, those that can were built to.

    Raises:
        ConfigError: The model has no experts, or there are several processes.
    """
    from grpo_core.experts.engine import check_told, routing

    shared, take = trainer.world.shared, trainer.take
    if trainer.world.size > 1:
        raise ConfigError(
            "rollout.replay_experts: routing is told to one process; start the run without torchrun"
        )
    chooses = routing(trainer.policy.causal)

    def told(rollout: Rollout, completions: Sequence[Completion], *, max_age: int = 0) -> None:
        check_told(trainer.engine_name, chooses, rollout.requests, completions)
        take(rollout, completions, max_age=max_age)

    def telling(own: Any, *, each: bool = False) -> Any:
        engine = shared(own, each=each)
        if not engine.capabilities.experts:
            why = engine.capabilities.why_not.get("experts", "it doesn't say why")
            raise EngineError(f"{engine.name} engine: it tells no routing (experts): {why}")
        return engine

    trainer.shared, trainer.take = telling, told  # type: ignore[assignment, method-assign]
