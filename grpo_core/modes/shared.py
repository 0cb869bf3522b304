"""The engine of a run, as each of its processes sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from grpo_core.machine.distributed import World
    from grpo_core.rollout.engine import Engine

E = TypeVar("E", bound="Engine")


def shared(world: World, engine: E | None, *, each: bool = False) -> E:
    """One engine for all processes: `each` has one of its own, or rank 0 has the only one."""
    if world.size == 1:
        assert engine is not None
        return engine
    from grpo_core.rollout.shared import SharedEngine

    return SharedEngine(engine, world, each=each)  # type: ignore[return-value]
