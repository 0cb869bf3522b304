"""Repros: weights do not reach the engine, or arrive changed, shown on the whole engine."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.base import InapplicableError, Work
from repro.drivers import whole_engine


def same_prompt(mitigation: str | None) -> Work:
    """Load new weights, and keep the keys that the old ones cached for the same prompt."""
    old, new = whole_engine.model(0), whole_engine.model(1)
    options = {"enable_prefix_caching": mitigation != "prefix_caching_off"}
    llm = whole_engine.start(whole_engine.save(old), logprobs_mode="processed_logprobs", **options)
    whole_engine.sample(llm, [whole_engine.LONG], [whole_engine.params(0)])
    whole_engine.push_weights(llm, new)
    if mitigation == "reset_prefix_cache" and not llm.reset_prefix_cache():
        raise InapplicableError("the prefix cache was not reset")
    [sample] = whole_engine.sample(llm, [whole_engine.LONG], [whole_engine.params(1)])
    return whole_engine.count_agreeing(
        list(zip(sample.logprobs, whole_engine.trainers(new, sample), strict=True))
    )


whole_engine.repro(
    "SYN001",
    same_prompt,
    changes={
        "reset_prefix_cache": "llm.reset_prefix_cache() after each update",
        "prefix_caching_off": "LLM(enable_prefix_caching=False)",
    },
)


def _after_a_step() -> tuple[Any, Any]:
    """Return an engine, and the policy that it was started on after a step of SGD, which moves every tensor."""
    import torch

    policy = whole_engine.model(0)
    llm = whole_engine.start(whole_engine.save(policy), logprobs_mode="processed_logprobs")
    ids = torch.tensor([whole_engine.LONG])
    policy(ids, labels=ids).loss.backward()
    with torch.no_grad():
        for value in policy.parameters():
            value.sub_(0.5 * value.grad)
            value.grad = None
    return llm, policy


def not_sent(mitigation: str | None) -> Work:
    """Compare samples of an engine that never got the update with the policy after a step."""
    llm, policy = _after_a_step()
    if mitigation == "push":
        whole_engine.push_weights(llm, policy)
        llm.reset_prefix_cache()
    return whole_engine.compare_samples(llm, policy)


whole_engine.repro(
    "SYN024", not_sent, changes={"push": "reload_weights with the policy's tensors before sampling"}
)


def layer_left_out(mitigation: str | None) -> Work:
    """Send all tensors but those of the second layer."""
    llm, policy = _after_a_step()
    whole_engine.push_weights(llm, policy, lambda name: mitigation == "all_names" or ".layers.1." not in name)
    llm.reset_prefix_cache()
    return whole_engine.compare_samples(llm, policy)


whole_engine.repro("SYN025", layer_left_out, changes={"all_names": "send every tensor of the model"})

_RANK, _ALPHA, _SIZE = 8, 16, 0.1
_MODULES = ("q_proj", "v_proj")


def _adapter(held: Any) -> tuple[str, dict[str, Any]]:
    """Write an adapter in peft's format; return its folder, and what it adds to each weight."""
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
    reported = {"peft_type": "LORA", "r": _RANK, "lora_alpha": _ALPHA, "target_modules": list(_MODULES)}
    Path(folder, "adapter_config.json").write_text(json.dumps(reported), encoding="utf-8")
    return folder, added


@dataclass(frozen=True)
class _Asked:
    """An engine that requests an adapter with every prompt."""

    llm: Any
    adapter: Any

    def generate(self, *asked: Any, **options: Any) -> Any:
        """Generate with the adapter, otherwise like the engine."""
        return self.llm.generate(*asked, lora_request=self.adapter, **options)


def merged(mitigation: str | None) -> Work:
    """An engine on the merged weights, with requests that also name the adapter."""
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
    return whole_engine.compare_samples(_Asked(llm, request), policy)


whole_engine.repro(
    "SYN026",
    merged,
    changes={"no_adapter": "merged weights, and no adapter", "base": "the base's weights, and the adapter"},
)
