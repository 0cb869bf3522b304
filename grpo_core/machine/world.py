"""The processes of a run, as one of them sees them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from grpo_core.config import Config
from grpo_core.machine.resources import check_devices, check_processes, shared_gpu
from grpo_core.rollout.engine import Engine
from grpo_core.rollout.shared import SharedEngine

T = TypeVar("T")
E = TypeVar("E", bound="Engine")


class World:
    """The processes that train one policy together: here only this one.

    Attributes:
        rank: This process's number, from 0.
        size: Number of processes.
    """

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """True in the process that writes files and prints."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Return this process's part of `count` items, in order; parts are equal where `size` divides `count`."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def gather(self, value: T) -> list[T]:
        """Return every process's value by rank, in all processes."""
        return [value]

    def from_first(self, value: T) -> T:
        """Return the value of rank 0."""
        return value

    def shared(self, engine: E | None, *, each: bool = False) -> E:  # noqa: ARG002 - there is one
        """Return one engine for all processes: `each` process has its own, or rank 0 has the only one."""
        assert engine is not None
        return engine

    def sums(self, values: Sequence[float]) -> list[float]:
        """Sum values over the processes in float64, in the order of ranks."""
        return [sum(column) for column in zip(*self.gather(list(values)), strict=True)]


class Processes(World):
    """The processes that torchrun started, as its environment variables show."""

    def __init__(self, device: str = "cpu") -> None:
        """Join the others."""
        self.rank, self.size = int(os.environ.get("RANK", "0")), int(os.environ["WORLD_SIZE"])
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")

    def gather(self, value: T) -> list[T]:
        """Return every process's value by rank, in all processes."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def shared(self, engine: E | None, *, each: bool = False) -> E:
        """Return one engine for all processes: `each` process has its own, or rank 0 has the only one."""
        return SharedEngine(engine, self, each=each)  # type: ignore[return-value]

    def from_first(self, value: T) -> T:
        """Return the value of rank 0."""
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]


def join_world(config: Config) -> World:
    """Join the processes of this run, on devices that can be divided as configured.

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
