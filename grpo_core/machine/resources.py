"""Which devices train and which sample: chosen where the settings say `auto`, checked before anything starts.

In colocate mode trainer and engine take turns on the same devices. In async and server mode they work at the same time:
each side has GPUs of its own, or both share one GPU, whose memory is then divided by `rollout.memory_share`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from grpo_core.config import ConfigError

if TYPE_CHECKING:
    from grpo_core.config import Config


# Log-prob difference between trainer and engine that counts as rounding, by the less exact of their types.
TOLERANCES = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.2}


def with_devices(config: Config, processes: int, visible: int) -> Config:
    """Return the settings with `auto` devices, engine type and sync tolerance replaced by what they stand for.

    Args:
        config: Checked settings.
        processes: Number of training processes (torchrun's).
        visible: GPUs that this machine shows.
    """
    train, rollout = config.train, config.rollout
    training = train.device
    if training == "auto":
        training = "cuda" if visible else "cpu"
    sampling = rollout.device
    if sampling == "auto":
        used = _gpus(training, processes)
        free = sorted(set(range(visible)) - used)
        apart = used and free and rollout.mode != "colocate"
        sampling = f"cuda:{free[0]}" if apart else training
    tolerance = rollout.sync_tolerance or max(TOLERANCES[config.model.dtype], TOLERANCES[config.engine_dtype])
    rollout = replace(rollout, device=sampling, dtype=config.engine_dtype, sync_tolerance=tolerance)
    return replace(config, train=replace(train, device=training), rollout=rollout)


def resolve(config: Config) -> Config:
    """`with_devices` for this machine."""
    import torch

    return with_devices(config, int(os.environ.get("WORLD_SIZE", "1")), torch.cuda.device_count())


def torch_device(device: str) -> str:
    """The device; with `auto` a GPU if there is one."""
    import torch

    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def shared_gpu(config: Config, processes: int) -> bool:
    """Whether trainer and engine use the same GPU at the same time, so that its memory has to be divided."""
    if config.rollout.mode == "colocate" or (config.rollout.mode == "server" and config.rollout.port):
        return False
    return bool(_gpus(config.train.device, processes) & _gpus(config.rollout.device, processes))


def check_devices(config: Config, processes: int, visible: int) -> list[str]:
    """Refuses a split of the GPUs that can't work; on the CPU there is nothing to split.

    Args:
        config: `train.device`, `rollout.device`, `rollout.mode` and `rollout.port` count.
        processes: Of the training (torchrun's).
        visible: GPUs that this machine shows.

    Returns:
        What the user should know of a split that works: how memory is divided, which GPUs are idle.

    Raises:
        ConfigError: Names the devices of both sides and what is expected.
    """
    training = _gpus(config.train.device, processes)
    external = config.rollout.mode == "server" and config.rollout.port != 0
    sampling = frozenset[int]() if external else _gpus(config.rollout.device, processes)
    used = training | sampling
    shown = (
        f"train.device = {config.train.device!r} in {processes} process(es) is {_words(training)}, "
        f"rollout.device = {config.rollout.device!r} is {_words(sampling)}, {visible} GPU(s) are visible"
    )
    if used and max(used) >= visible:
        raise ConfigError(f"{shown}: cuda:{max(used)} does not exist here")
    if not used:
        return []
    if config.rollout.mode == "colocate" and training != sampling:
        raise ConfigError(f"{shown}: in colocate mode both sides take turns on the same GPUs")
    notes = []
    if shared_gpu(config, processes):
        if processes > 1:
            raise ConfigError(
                f"{shown}: in {config.rollout.mode} mode several processes and the engine need GPUs of their own"
            )
        share = config.rollout.memory_share
        notes.append(
            f"trainer and engine share {_words(training)}: the engine may use {share:.0%} of its memory, the trainer "
            f"{1 - share:.0%} (rollout.memory_share)"
        )
    if len(used) < visible:
        notes.append(f"{visible - len(used)} of {visible} visible GPUs are idle")
    return notes


def check_processes(config: Config, processes: int) -> None:
    """Refuses what several processes can't share out.

    Raises:
        ConfigError: A step's prompts don't divide by the processes, or each would start vLLM beside its own trainer.
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
    """`cuda` is one GPU a process, `cuda:N` that one, `cpu` none."""
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return frozenset()
    return frozenset({int(number)} if number else range(processes))


def _words(gpus: frozenset[int]) -> str:
    return ", ".join(f"cuda:{number}" for number in sorted(gpus)) or "no GPU"
