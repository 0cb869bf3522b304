"""The processes of a run: one, or several under torchrun."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from grpo_core.machine.determinism import settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpo_core.config import Config

T = TypeVar("T")


class World:
    """All processes that train one policy together, as one of them sees it.

    Attributes:
        rank: This process's number, from 0.
        size: Their count.
    """

    def __init__(self, device: str = "cpu") -> None:
        """Joins the others, if torchrun started any (its environment variables say so)."""
        self.rank, self.size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        if self.size > 1:
            import torch.distributed as dist

            if not dist.is_initialized():
                dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")

    @property
    def first(self) -> bool:
        """True in the process that writes files and speaks to people."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This process's part of `count` things, in order; the parts are equal where `size` divides `count`."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def gather(self, value: T) -> list[T]:
        """What each process gave, by rank, in all of them."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def from_first(self, value: T) -> T:
        """What rank 0 gave."""
        if self.size == 1:
            return value
        import torch.distributed as dist

        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def sums(self, values: Sequence[float]) -> list[float]:
        """Sums over the processes, in float64, added up in the order of ranks."""
        return [sum(column) for column in zip(*self.gather(list(values)), strict=True)]


def joined(config: Config) -> World:
    """The processes of this run, each made repeatable, on devices that can be shared out as configured.

    Raises:
        ConfigError: They can't.
    """
    settle(config.train.threads)
    world = World(config.train.device)
    if world.size > 1 or "cuda" in config.train.device + config.rollout.device:
        import torch

        from grpo_core.machine.resources import check_devices, check_processes

        check_devices(config, world.size, torch.cuda.device_count())
        check_processes(config, world.size)
    return world
