"""Low-rank adapters, by peft: trained instead of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from grpo_core.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grpo_core.config import ModelConfig


def inject(causal: Any, options: ModelConfig, seed: int) -> list[Any]:
    """Puts low-rank adapters into the model and freezes the rest; returns the layers that have one."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError(
            f"model.lora_rank = {options.lora_rank}: needs peft in this environment ({error}); pip install peft"
        ) from error
    targets = options.lora_targets
    wanted = LoraConfig(
        r=options.lora_rank,
        lora_alpha=options.lora_alpha,
        target_modules=targets[0] if targets == ("all-linear",) else list(targets),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(wanted, causal)
        except ValueError as error:
            raise ConfigError(f"model.lora_targets = {list(targets)}: {error}") from error
    return adapter_layers(causal)


def adapter_layers(causal: Any) -> list[Any]:
    """The layers of a model that have adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [layer for layer in causal.modules() if isinstance(layer, BaseTunerLayer)]


@torch.no_grad()  # type: ignore[untyped-decorator]
def merged(causal: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters with the adapters added to them, by the names that they have without."""
    layers = dict(causal.named_modules())
    for name, value in causal.named_parameters():
        if ".lora_" in name:
            continue
        layer, base, rest = name.rpartition(".base_layer.")
        if not base:
            yield name, value
        else:
            added = layers[layer].get_delta_weight("default") if rest == "weight" else 0
            yield f"{layer}.{rest}", value + added
