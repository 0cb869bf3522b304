"""The processes of a run under torchrun, and the devices that they share out."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from grpo_core.machine.resources import check_devices, check_processes, shared_gpu
from grpo_core.machine.world import E, T, World
from grpo_core.rollout.shared import SharedEngine

if TYPE_CHECKING:
    from grpo_core.config import Config


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
