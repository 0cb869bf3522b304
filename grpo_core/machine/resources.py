"""Devices of the trainer and the engine: selected where a setting is `auto`, checked before anything starts.

In colocate mode trainer and engine take turns on the same devices. In async and server mode they work at the same time:
each has its own GPUs, or both share one GPU whose memory is divided by `rollout.memory_share`.
"""

from __future__ import annotations

import os
from dataclasses import replace

from grpo_core.config import Config, ConfigError

# Log-prob difference between trainer and engine that counts as rounding, by the less exact of their types.
TOLERANCES = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.2}


def with_devices(config: Config, processes: int, visible: int) -> Config:
    """Return the settings with devices, engine type and sync tolerance set where they are automatic.

    Args:
        config: Checked settings.
        processes: Number of training processes (torchrun's).
        visible: GPUs that this machine shows.
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


def resolve(config: Config) -> Config:
    """Apply `with_devices` for this machine."""
    import torch

    return with_devices(config, int(os.environ.get("WORLD_SIZE", "1")), torch.cuda.device_count())


def torch_device(device: str) -> str:
    """Return the device; for `auto` a GPU if there is one."""
    import torch

    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def shared_gpu(config: Config, processes: int) -> bool:
    """Return whether trainer and engine use one GPU at the same time, so that its memory must be divided."""
    if config.rollout.mode == "colocate" or (config.rollout.mode == "server" and config.rollout.port):
        return False
    return bool(_gpus(config.train.device, processes) & _gpus(config.rollout.device, processes))


def check_devices(config: Config, processes: int, visible: int) -> list[str]:
    """Refuse a division of the GPUs that can't work; on the CPU there is nothing to divide.

    Args:
        config: Uses `train.device`, `rollout.device`, `rollout.mode` and `rollout.port`.
        processes: Number of training processes (torchrun's).
        visible: GPUs that this machine shows.

    Returns:
        Notes for the user: how memory is divided, how many GPUs are idle.

    Raises:
        ConfigError: Names the devices of both and what is expected.
    """
    trainer = _gpus(config.train.device, processes)
    external = config.rollout.mode == "server" and config.rollout.port != 0
    engine = frozenset[int]() if external else _gpus(config.rollout.device, processes)
    used = trainer | engine
    devices = (
        f"train.device = {config.train.device!r} in {processes} process(es) is {_gpu_names(trainer)}, "
        f"rollout.device = {config.rollout.device!r} is {_gpu_names(engine)}, {visible} GPU(s) are visible"
    )
    if used and max(used) >= visible:
        raise ConfigError(f"{devices}: cuda:{max(used)} does not exist here")
    if not used:
        return []
    if config.rollout.mode == "colocate" and trainer != engine:
        raise ConfigError(f"{devices}: in colocate mode both sides take turns on the same GPUs")
    notes = []
    if shared_gpu(config, processes):
        if processes > 1:
            raise ConfigError(
                f"{devices}: in {config.rollout.mode} mode several processes and the engine need GPUs of their own"
            )
        share = config.rollout.memory_share
        notes.append(
            f"trainer and engine share {_gpu_names(trainer)}: the engine may use {share:.0%} of its memory, "
            f"the trainer {1 - share:.0%} (rollout.memory_share)"
        )
    if len(used) < visible:
        notes.append(f"{visible - len(used)} of {visible} visible GPUs are idle")
    return notes


def check_processes(config: Config, processes: int) -> None:
    """Refuse settings that several processes can't divide.

    Raises:
        ConfigError: A step's prompts don't divide by the processes, or each would start vLLM in its own trainer.
    """
    if config.train.prompts_per_step % processes:
        raise ConfigError(
            f"train.prompts_per_step = {config.train.prompts_per_step}: {processes} processes train on equal shares; "
            f"expected a multiple of {processes}"
        )
    if processes > 1 and config.rollout.mode == "colocate" and config.rollout.engine == "vllm":
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
