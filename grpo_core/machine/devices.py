"""Choose the devices of trainer and engine where a setting is `auto`, and refuse settings that cannot work.

`with_devices` also fills in the engine's dtype and the tolerance of weight syncs. `check_devices` refuses missing or
unsuitable GPUs, and batch sizes and engines that do not fit the number of processes.

In colocate mode trainer and engine take turns on the same devices. In async and server mode both hold memory at the
same time: each has its own devices, both share one GPU whose memory is divided by `rollout.memory_share`, or both use
the CPU.
"""

from __future__ import annotations

import os
from dataclasses import replace

from grpo_core.config import Config, ConfigError

# Log-prob difference between trainer and engine that counts as rounding, by the less exact of their types.
TOLERANCES = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.2}


def with_devices(config: Config, processes: int, visible: int) -> Config:
    """Return the settings with devices, engine dtype and sync tolerance filled in where they are automatic.

    Args:
        config: Checked settings.
        processes: Number of training processes (torchrun's).
        visible: Number of visible GPUs.
    """
    train, rollout = config.train, config.rollout
    trainer = train.device
    if trainer == "auto":
        trainer = "cuda" if visible else "cpu"
    engine = rollout.device
    if engine == "auto":
        used = _gpus(trainer, processes)
        free = sorted(set(range(visible)) - used)
        separate = used and free and rollout.mode != "colocate"
        engine = f"cuda:{free[0]}" if separate else trainer
    tolerance = rollout.sync_tolerance or max(TOLERANCES[config.model.dtype], TOLERANCES[config.engine_dtype])
    rollout = replace(rollout, device=engine, dtype=config.engine_dtype, sync_tolerance=tolerance)
    return replace(config, train=replace(train, device=trainer), rollout=rollout)


def resolve_devices(config: Config) -> Config:
    """Apply `with_devices` for the GPUs of this machine and torchrun's number of processes."""
    import torch

    return with_devices(config, int(os.environ.get("WORLD_SIZE", "1")), torch.cuda.device_count())


def shared_gpu(config: Config, processes: int) -> bool:
    """Return whether trainer and engine hold memory of one GPU at the same time; False for a running server."""
    if config.rollout.mode == "colocate" or (config.rollout.mode == "server" and config.rollout.port):
        return False
    return bool(_gpus(config.train.device, processes) & _gpus(config.rollout.device, processes))


def check_devices(config: Config, processes: int, visible: int) -> None:
    """Refuse devices, batch sizes or engines that cannot work.

    Args:
        config: The settings, with devices.
        processes: Number of training processes (torchrun's).
        visible: Number of visible GPUs.

    Raises:
        ConfigError: A GPU is missing, trainer and engine can't use the given GPUs together, the number of prompts is
            not a multiple of the number of processes, or each process would start vLLM.
    """
    trainer, engine = (_gpus(device, processes) for device in (config.train.device, config.rollout.device))
    if config.rollout.mode == "server" and config.rollout.port:
        engine = frozenset()
    colocated = config.rollout.mode == "colocate"
    problem = ""
    if missing := sorted(gpu for gpu in trainer | engine if gpu >= visible):
        problem = f"cuda:{missing[-1]} does not exist here"
    elif colocated and trainer != engine:
        problem = "in colocate mode both sides take turns on the same GPUs"
    elif processes > 1 and not colocated and trainer & engine:
        problem = f"in {config.rollout.mode} mode several processes and the engine need GPUs of their own"
    if problem:
        raise ConfigError(
            f"train.device = {config.train.device!r} in {processes} process(es) is {_gpu_names(trainer)}, "
            f"rollout.device = {config.rollout.device!r} is {_gpu_names(engine)}, "
            f"{visible} GPU(s) are visible: {problem}"
        )
    if config.train.prompts_per_step % processes:
        raise ConfigError(
            f"train.prompts_per_step = {config.train.prompts_per_step}: {processes} processes train on equal shares; "
            f"expected a multiple of {processes}"
        )
    if processes > 1 and colocated and config.rollout.engine == "vllm":
        raise ConfigError(
            f"rollout.engine = 'vllm' in colocate mode in {processes} processes: vLLM would join their process group; "
            "set rollout.mode to 'async' or 'server'"
        )


def _gpus(device: str, processes: int) -> frozenset[int]:
    """Return the GPUs of a device: for `cuda` one per process, for `cuda:N` that one, for `cpu` none."""
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return frozenset()
    return frozenset({int(number)} if number else range(processes))


def _gpu_names(gpus: frozenset[int]) -> str:
    return ", ".join(f"cuda:{number}" for number in sorted(gpus)) or "no GPU"
