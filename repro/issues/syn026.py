"""SYN026: the trainer merged its adapter into the weights, and the engine adds the adapter to them again.

It raises nothing: the number that is wrong shows it, on the whole engine.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.base import Repro, TriedMitigation, Trigger
from repro.drivers import pushed_weights, whole_engine

if TYPE_CHECKING:
    from repro.base import Work

_RANK, _ALPHA, _SIZE = 8, 16, 0.1
_MODULES = ("q_proj", "v_proj")


def _adapter(held: Any) -> tuple[str, dict[str, Any]]:
    """Writes an adapter in peft's format; returns its folder, and what it adds to each weight."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(5)
    tensors: dict[str, Any] = {}
    added: dict[str, Any] = {}
    for name, value in held.named_parameters():
        if name.split(".")[-2] not in _MODULES:
            continue
        down = _SIZE * torch.randn(_RANK, value.shape[1], generator=generator)
        up = _SIZE * torch.randn(value.shape[0], _RANK, generator=generator)
        key = f"base_model.model.{name.removesuffix('.weight')}"
        tensors |= {f"{key}.lora_A.weight": down, f"{key}.lora_B.weight": up}
        added[name] = (_ALPHA / _RANK) * up @ down
    folder = tempfile.mkdtemp(prefix="grpo-doctor-")
    save_file(tensors, Path(folder, "adapter_model.safetensors"))
    told = {"peft_type": "LORA", "r": _RANK, "lora_alpha": _ALPHA, "target_modules": list(_MODULES)}
    Path(folder, "adapter_config.json").write_text(json.dumps(told), encoding="utf-8")
    return folder, added


@dataclass(frozen=True)
class _Asked:
    """An engine that is asked for an adapter with every request."""

    llm: Any
    adapter: Any

    def generate(self, *asked: Any, **options: Any) -> Any:
        """As the engine's own, with the adapter."""
        return self.llm.generate(*asked, lora_request=self.adapter, **options)


def _merged_and_asked_for(mitigation: str | None) -> Work:
    """An engine on the merged weights, asked for the adapter by name."""
    import torch
    from vllm.lora.request import LoRARequest

    policy = whole_engine.model(0)
    base = whole_engine.save(policy)
    folder, added = _adapter(policy)
    with torch.no_grad():
        for name, value in policy.named_parameters():
            if name in added:
                value.add_(added[name])
    start = base if mitigation == "base" else whole_engine.save(policy)
    options = {"enable_lora": True, "max_loras": 1, "max_lora_rank": _RANK}
    llm = whole_engine.start(start, logprobs_mode="processed_logprobs", **options)
    request = None if mitigation == "no_adapter" else LoRARequest("policy", 1, folder)
    return pushed_weights.held_against(_Asked(llm, request), policy)


REPRO = Repro(
    code="SYN026",
    title="The adapter counts twice, or only in part",
    distributions=whole_engine.DISTRIBUTIONS,
    modules=whole_engine.MODULES,
    triggers=(
        Trigger(
            "merged", "merged weights, and the adapter with each request", _merged_and_asked_for, silent=True
        ),
    ),
    mitigations=(
        TriedMitigation("no_adapter", "merged weights, and no adapter", frozenset({"merged"})),
        TriedMitigation("base", "the base's weights, and the adapter", frozenset({"merged"})),
    ),
    inapplicable=whole_engine.inapplicable,
)
