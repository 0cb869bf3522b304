"""Which devices train and which sample, checked before anything starts.

The rule is ms-swift's: taking turns, training and sampling both use all visible GPUs; working at the same time, they
share them out, every GPU to one side. A GPU that both sides use at once runs out of memory after minutes; one
that neither uses was paid for in vain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_core.config import ConfigError

if TYPE_CHECKING:
    from grpo_core.config import Config


def check_devices(config: Config, processes: int, visible: int) -> None:
    """Refuses a split of the GPUs that can't work; on the CPU there is nothing to split.

    Args:
        config: `train.device`, `rollout.device`, `rollout.mode` and `rollout.port` count.
        processes: Of the training (torchrun's).
        visible: GPUs that this machine shows.

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
        return
    if config.rollout.mode == "colocate" and training != sampling:
        raise ConfigError(f"{shown}: in colocate mode both sides take turns on the same GPUs")
    # With one GPU there is nothing to share out: both sides allocate from it as they need.
    if config.rollout.mode != "colocate" and training & sampling and visible > 1:
        raise ConfigError(
            f"{shown}: in {config.rollout.mode} mode both sides work at once and need GPUs of their own"
        )
    if len(used) < visible:
        raise ConfigError(f"{shown}: {visible - len(used)} would be idle; hide them by CUDA_VISIBLE_DEVICES")


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
