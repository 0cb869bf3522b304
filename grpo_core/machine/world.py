"""The processes of a run, as one of them sees them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from grpo_core.machine.resources import check_devices, check_processes, shared_gpu
from grpo_core.rollout.shared import SharedEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpo_core.config import Config
    from grpo_core.rollout.engine import Engine

T = TypeVar("T")
E = TypeVar("E", bound="Engine")


class World:
    """All processes that train one policy together: this one alone. Several are `grpo_core.machine.world`'s.

    Attributes:
        rank: This process's number, from 0.
        size: Their count.
    """

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """True in the process that writes files and speaks to people."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This process's part of `count` things, in order; the parts are equal where `size` divides `count`."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def gather(self, value: T) -> list[T]:
        """What each process gave, by rank, in all of them."""
        return [value]

    def from_first(self, value: T) -> T:
        """What rank 0 gave."""
        return value

    def shared(self, engine: E | None, *, each: bool = False) -> E:  # noqa: ARG002 - there is one
        """One engine for all processes: `each` has one of its own, or rank 0 has the only one."""
        assert engine is not None
        return engine

    def sums(self, values: Sequence[float]) -> list[float]:
        """Sums over the processes, in float64, added up in the order of ranks."""
        return [sum(column) for column in zip(*self.gather(list(values)), strict=True)]


def alone(config: Config) -> bool:
    """Whether this process has nothing to share out: torchrun started no others, and there are no GPUs to divide."""
    devices = config.train.device + config.rollout.device
    return os.environ.get("WORLD_SIZE", "1") == "1" and "cuda" not in devices


class Processes(World):
    """Those that torchrun started (its environment variables say so)."""

    def __init__(self, device: str = "cpu") -> None:
        """Joins the others."""
        self.rank, self.size = int(os.environ.get("RANK", "0")), int(os.environ["WORLD_SIZE"])
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")

    def gather(self, value: T) -> list[T]:
        """What each process gave, by rank, in all of them."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def shared(self, engine: E | None, *, each: bool = False) -> E:
        """One engine for all processes: `each` has one of its own, or rank 0 has the only one."""
        return SharedEngine(engine, self, each=each)  # type: ignore[return-value]

    def from_first(self, value: T) -> T:
        """What rank 0 gave."""
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]


def joined(config: Config) -> World:
    """The processes of this run, on devices that can be shared out as configured.

    Raises:
        ConfigError: They can't.
    """
    several = os.environ.get("WORLD_SIZE", "1") != "1"
    world = Processes(config.train.device) if several else World()
    notes = check_devices(config, world.size, torch.cuda.device_count())
    check_processes(config, world.size)
    if world.first:
        for note in notes:
            print(f"grpo_core: {note}", file=sys.stderr)
    if shared_gpu(config, world.size):
        torch.cuda.set_per_process_memory_fraction(
            1 - config.rollout.memory_share, torch.device(config.train.device)
        )
    return world
