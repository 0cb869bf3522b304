"""Reproduce stale, missing or wrong weights in vLLM's whole unmodified engine.

SYN001 is `_reuse_cached_prompt` (a prefix cache computed with old weights), SYN024 `_skip_update` (an update that was
not sent), SYN025 `_leave_layer_out`, SYN026 `_apply_adapter_twice`. Each takes the name of a mitigation, or None, and
returns the tally of the log-probs that are the trainer's.
"""

import json
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from repro.drivers import whole_engine
from repro.drivers.whole_engine import PROCESSED
from repro.registry import InapplicableError, Tally, Trigger


def _reuse_cached_prompt(mitigation: str | None) -> Tally:
    """Load new weights, and keep the prefix cache that the old weights computed for the same prompt."""
    old, new = whole_engine.model(0), whole_engine.model(1)
    caching = mitigation != "prefix_caching_off"
    llm = whole_engine.start(whole_engine.save(old), **PROCESSED, enable_prefix_caching=caching)
    whole_engine.sample(llm, [whole_engine.LONG_PROMPT], [whole_engine.params(0)])
    whole_engine.push_weights(llm, new)
    if mitigation == "reset_prefix_cache" and not llm.reset_prefix_cache():
        raise InapplicableError("the prefix cache was not reset")
    [sample] = whole_engine.sample(llm, [whole_engine.LONG_PROMPT], [whole_engine.params(1)])
    trainer = whole_engine.trainer_logprobs(new, sample)
    return whole_engine.count_agreeing(list(zip(sample.logprobs, trainer, strict=True)))


whole_engine.repro("SYN001", triggers=[Trigger("same_prompt", _reuse_cached_prompt, silent=True)])


def _start_and_train() -> tuple[Any, Any]:
    """Start an engine on a policy, and take a step of SGD on the policy; return the engine and the changed policy."""
    import torch

    policy, llm = whole_engine.start_model(**PROCESSED)
    ids = torch.tensor([whole_engine.LONG_PROMPT])
    policy(ids, labels=ids).loss.backward()
    torch.optim.SGD(policy.parameters(), lr=0.5).step()
    policy.zero_grad()
    return llm, policy


def _skip_update(mitigation: str | None) -> Tally:
    """Compare samples of an engine that did not get the update with the policy after a step."""
    llm, policy = _start_and_train()
    if mitigation == "push":
        whole_engine.push_weights(llm, policy)
        llm.reset_prefix_cache()
    return whole_engine.compare_samples(llm, policy)


whole_engine.repro("SYN024", triggers=[Trigger("not_sent", _skip_update, silent=True)])


def _leave_layer_out(mitigation: str | None) -> Tally:
    """Send all tensors except those of the second layer."""
    llm, policy = _start_and_train()
    whole_engine.push_weights(llm, policy, lambda name: mitigation == "all_names" or ".layers.1." not in name)
    llm.reset_prefix_cache()
    return whole_engine.compare_samples(llm, policy)


whole_engine.repro("SYN025", triggers=[Trigger("layer_left_out", _leave_layer_out, silent=True)])

_RANK, _ALPHA, _SIZE = 8, 16, 0.1
_MODULES = ("q_proj", "v_proj")


def _write_adapter(model: Any) -> tuple[str, dict[str, Any]]:
    """Write a random LoRA adapter in peft's format; return its folder, and its change of each weight by name."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(5)
    tensors: dict[str, Any] = {}
    differences: dict[str, Any] = {}
    for name, value in model.named_parameters():
        if name.split(".")[-2] not in _MODULES:
            continue
        down = _SIZE * torch.randn(_RANK, value.shape[1], generator=generator)
        up = _SIZE * torch.randn(value.shape[0], _RANK, generator=generator)
        key = f"base_model.model.{name.removesuffix('.weight')}"
        tensors |= {f"{key}.lora_A.weight": down, f"{key}.lora_B.weight": up}
        differences[name] = (_ALPHA / _RANK) * up @ down
    folder = tempfile.mkdtemp(prefix="grpo-doctor-")
    save_file(tensors, Path(folder, "adapter_model.safetensors"))
    config = {"peft_type": "LORA", "r": _RANK, "lora_alpha": _ALPHA, "target_modules": list(_MODULES)}
    Path(folder, "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder, differences


def _apply_adapter_twice(mitigation: str | None) -> Tally:
    """Apply an adapter twice: its change is merged into the weights, and the requests name it, too."""
    import torch
    from vllm.lora.request import LoRARequest

    policy = whole_engine.model(0)
    base = whole_engine.save(policy)
    adapter, differences = _write_adapter(policy)
    with torch.no_grad():
        for name, value in policy.named_parameters():
            if name in differences:
                value.add_(differences[name])
    folder = base if mitigation == "base" else whole_engine.save(policy)
    options = {"enable_lora": True, "max_loras": 1, "max_lora_rank": _RANK}
    llm = whole_engine.start(folder, **PROCESSED, **options)
    request = None if mitigation == "no_adapter" else LoRARequest("policy", 1, adapter)
    engine = SimpleNamespace(generate=partial(llm.generate, lora_request=request))
    return whole_engine.compare_samples(engine, policy)


whole_engine.repro("SYN026", triggers=[Trigger("merged", _apply_adapter_twice, silent=True)])
