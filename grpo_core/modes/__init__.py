"""The three rollout modes: three short loops, to be read side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from grpo_core.rollout.engine import Engine
    from grpo_core.trainer import Trainer

E = TypeVar("E", bound="Engine")


def run(trainer: Trainer) -> None:
    """Trains in the mode that is configured."""
    mode = trainer.config.rollout.mode
    if mode == "colocate":
        from grpo_core.modes import colocate

        colocate.run(trainer)
    elif mode == "async":
        from grpo_core.modes import asynchronous

        asynchronous.run(trainer)
    else:
        from grpo_core.modes import server

        server.run(trainer)


def shared(trainer: Trainer, engine: E | None, *, each: bool = False) -> E:
    """The engine, as all processes of the run see it: `each` has one of its own, or rank 0 has the only one."""
    if trainer.world.size == 1:
        assert engine is not None
        return engine
    from grpo_core.rollout.shared import SharedEngine

    return SharedEngine(engine, trainer.world, each=each)  # type: ignore[return-value]
