"""Define the process group of a run (torch.distributed under torchrun), and an engine that all ranks call together.

`World` is the group of a single process, `Processes` that of several ranks. `join_world` joins the group, checks the
devices, and limits the trainer's share of a GPU that the engine uses, too. `SharedEngine` gives all ranks the same
answers of the rollout engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from grpo_core.config import Config
from grpo_core.machine.devices import check_devices, shared_gpu
from grpo_core.rollout.engine import Capabilities, Engine, EngineError
from grpo_core.types import Completion, Request, SamplingParams

T = TypeVar("T")
E = TypeVar("E", bound="Engine")


class World:
    """The process group of a run in a single process; `Processes` is its subclass for several ranks.

    Attributes:
        rank: This process's number, from 0.
        size: Number of processes (the world size).
    """

    rank, size = 0, 1

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files and prints."""
        return self.rank == 0

    def slice_of(self, count: int) -> slice:
        """Return this rank's slice of `count` items; the slices are equal if `size` divides `count`."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def gather(self, value: T) -> list[T]:
        """All-gather: return the values of all ranks, in order, on every rank."""
        return [value]

    def share_engine(self, engine: E | None, *, per_rank: bool = False) -> E:
        """Return an engine that all ranks call together; with `per_rank` each rank has one, else only rank 0."""
        if self.size > 1:
            return SharedEngine(engine, self, per_rank=per_rank)  # type: ignore[return-value]
        assert engine is not None
        return engine

    def sums(self, values: Sequence[float]) -> list[float]:
        """Sum each value over all ranks, in float64 and in the order of ranks."""
        return [sum(column) for column in zip(*self.gather(list(values)), strict=True)]


class Processes(World):
    """The process group of the ranks that torchrun started: NCCL on GPUs, else gloo."""

    def __init__(self, device: str = "cpu") -> None:
        """Join the process group; torchrun's environment variables name rank and world size."""
        self.rank, self.size = int(os.environ.get("RANK", "0")), int(os.environ["WORLD_SIZE"])
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")

    def gather(self, value: T) -> list[T]:
        """All-gather: return the values of all ranks, in order, on every rank."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values


def join_world(config: Config) -> World:
    """Join this run's process group, check the devices, and limit the trainer's memory on a GPU shared with the engine.

    Raises:
        ConfigError: The devices or the number of processes do not fit the configuration.
    """
    several = os.environ.get("WORLD_SIZE", "1") != "1"
    world = Processes(config.train.device) if several else World()
    check_devices(config, world.size, torch.cuda.device_count())
    if shared_gpu(config, world.size):
        share = 1 - config.rollout.memory_share
        torch.cuda.set_per_process_memory_fraction(share, torch.device(config.train.device))
    return world


class SharedEngine:
    """A rollout engine for all ranks: all make the same calls at the same time, and get the same answers.

    With `per_rank` every rank has its own engine. It samples the rank's slice of the requests, or all requests if their
    number is not a multiple of the world size. Otherwise only rank 0 has an engine.

    The version, the fingerprint and the probe of a weight sync are rank 0's: they don't prove the other ranks' engines.
    """

    def __init__(self, engine: Engine | None, world: World, *, per_rank: bool) -> None:
        """Read name and capabilities from rank 0's engine; `engine` is None on ranks without one."""
        self._engine, self._world, self._per_rank = engine, world, per_rank
        self.name: str = self._first(lambda engine: engine.name)
        self.capabilities: Capabilities = self._first(lambda engine: engine.capabilities)

    @property
    def policy_version(self) -> int:
        """The policy version of rank 0's engine."""
        return int(self._first(lambda engine: engine.policy_version))

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Sample one completion per request, in the order of the requests."""
        if not self._per_rank or len(requests) % self._world.size:  # a probe goes to every engine
            return list(self._first(lambda engine: engine.generate(requests, params)))
        share = requests[self._world.slice_of(len(requests))]
        parts = self._all(lambda engine: engine.generate(share, params))
        return [completion for part in parts for completion in part]

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """Return a method of the engines: it takes no keywords, calls every engine and returns rank 0's answer."""
        return lambda *arguments: self._first(lambda engine: getattr(engine, method)(*arguments))

    def close(self) -> None:
        """Close this rank's own engine."""
        if self._engine is not None:
            self._engine.close()

    def _first(self, call: Callable[[Any], Any]) -> Any:
        """Call every engine; return rank 0's answer."""
        return self._all(call)[0]

    def _all(self, call: Callable[[Any], Any]) -> list[Any]:
        """Call every engine; an EngineError of one rank is raised on all, so that none waits for it."""
        value, failure = None, None
        try:
            value = None if self._engine is None else call(self._engine)
        except EngineError as error:
            failure = error
        answers = self._world.gather((value, failure))
        if failures := [failure for _, failure in answers if failure is not None]:
            raise failures[0]
        return [value for value, _ in answers]
