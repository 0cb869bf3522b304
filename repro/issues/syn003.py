"""SYN003: TRL's colocated engine samples from the weights it was started with, each time it was asleep.

With sleep mode on, TRL's `VLLMGeneration.generate` wakes the engine and calls vLLM's `reload_weights`, which reads the
checkpoint on disk. The weights that `sync_weights` had pushed are gone: every rollout comes from the base model.

TRL's own class runs here, around vLLM's whole engine. Two things are not as on a GPU. vLLM's CPU build refuses sleep
mode when the engine is started, and ignores `sleep` and `wake_up` after that, so the flag of TRL's class is set after
the start. And it has repacked its weights, which TRL's push of single parameters can't fill; the same tensors go in
through `reload_weights` with an iterator.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from repro import upstream
from repro.base import OTHER_RELEASE, Trigger, Work, repro
from repro.drivers import tiny_trl, whole_engine

_NAMES = ("trl",)
_FILE = "trl/generation/vllm_generation.py"
_RELOADS = 'collective_rpc("reload_weights")'
MODULES = ("torch", "transformers", "vllm", "accelerate", "trl.generation.vllm_generation")
LENGTH = 24
# TRL leaves the type to vLLM, which computes in bfloat16 on a CPU; the right weights differ by less than this.
TOLERANCE = 0.2


def _generation(model: Any) -> Any:
    """Make TRL's colocated engine on a model that was loaded from a folder."""
    # TRL does not ask for eager mode; without a compiler the graph runs as it is.
    os.environ.update(whole_engine.environment() | {"VLLM_USE_AOT_COMPILE": "0"})
    from trl.generation.vllm_generation import VLLMGeneration

    # Only TRL before 1.0.
    known = inspect.signature(VLLMGeneration.__init__).parameters
    built = VLLMGeneration(
        model=model,
        accelerator=import_module("accelerate").Accelerator(cpu=True),
        **({"is_fsdp_enabled": False} if "is_fsdp_enabled" in known else {}),
        processing_class=tiny_trl.tokenizer(),
        mode="colocate",
        max_model_length=whole_engine.LIMIT,
        max_completion_length=LENGTH,
        enable_sleep_mode=False,  # the CPU build refuses it
        logprobs=0,
        generation_kwargs={"ignore_eos": True, "seed": 3},
    )
    _push(built.llm, model)  # as after the trainer's first synchronisation
    return built


def _push(llm: Any, model: Any) -> None:
    """Send a model's weights to the engine, and drop its cached keys."""
    tensors = iter([(name, value.detach()) for name, value in model.named_parameters()])
    llm.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
    llm.reset_prefix_cache()


def _sampled(generation: Any) -> list[whole_engine.Sampled]:
    """Generate with TRL's class; return completions with the log-prob of each token."""
    known = inspect.signature(generation.generate).parameters
    images = {"images": None} if "images" in known else {}
    result = generation.generate(
        [list(prompt) for prompt in whole_engine.PROMPTS], num_generations=1, **images
    )
    return [
        whole_engine.Sampled(tuple(prompt), tuple(ids), tuple(_first(value) for value in logprobs))
        for prompt, ids, logprobs in zip(whole_engine.PROMPTS, result[1], result[2], strict=True)
    ]


def _first(value: Any) -> float:
    """Return the sampled token's log-prob; newer releases have a list for each token."""
    return float(value[0] if isinstance(value, list) else value)


def _carry_out(mitigation: str | None) -> Work:
    from transformers import AutoModelForCausalLM

    folder = whole_engine.save(whole_engine.model(0))
    tiny_trl.tokenizer().save_pretrained(folder)
    base = AutoModelForCausalLM.from_pretrained(folder).float().eval()
    policy = AutoModelForCausalLM.from_pretrained(folder).float().eval()
    generation = _generation(policy)
    generation.enable_sleep_mode = mitigation != "sleep_off"
    policy.load_state_dict(whole_engine.model(1).state_dict())  # the optimizer step
    _push(generation.llm, policy)
    if mitigation == "checkpoint_on_disk":
        policy.save_pretrained(folder, safe_serialization=True)
    sampled = _sampled(generation)
    of = {
        name: [value for sample in sampled for value in whole_engine.trainers(tiny_model, sample)]
        for name, tiny_model in (("policy", policy), ("base", base))
    }
    return count_policy_logprobs(
        [value for sample in sampled for value in sample.logprobs], of["policy"], of["base"]
    )


def count_policy_logprobs(engine: Sequence[float], policy: Sequence[float], base: Sequence[float]) -> Work:
    """Count the log-probs that are the policy's, and report how many are the base model's."""
    names = [f"token {place}" for place in range(len(engine))]
    difference = [abs(a - b) for a, b in zip(engine, policy, strict=True)]
    received = [(name, 1) for name, off in zip(names, difference, strict=True) if off <= TOLERANCE]
    old = sum(abs(a - b) <= TOLERANCE for a, b in zip(engine, base, strict=True))
    mean = sum(difference) / len(difference)
    note = f"mean difference {mean:.2g}; {old} of {len(engine)} are the base model's"
    return Work(dict.fromkeys(names, 1), received, note=note, counted="log-probs are the policy's")


def inapplicable() -> str | None:
    """Return why the installed TRL and vLLM can't show it, or None."""
    distribution = upstream.installed(_NAMES)
    text = upstream.source(_FILE, _NAMES)
    if distribution is None or text is None:
        return f"there is no {_FILE} here: TRL 0.28 and newer have it"
    if _RELOADS not in text:
        return f"TRL {distribution.version} does not reload weights from disk before it generates"
    return whole_engine.inapplicable()


repro(
    "SYN003",
    distributions=_NAMES,
    modules=MODULES,
    simulated=(
        "sleep and wake, which the CPU build ignores",
        "the push of each parameter: the same tensors by reload_weights with an iterator",
        "the optimizer step: another model's weights",
    ),
    triggers=[Trigger("asleep", _carry_out, silent=True)],
    mitigations={
        "sleep_off": "vllm_enable_sleep_mode=False",
        "checkpoint_on_disk": "write the policy into the folder that the engine was started on, before it generates",
        "upgrade": ("TRL 1.10.0 or newer", "huggingface/trl#5355"),
    },
    untried=dict.fromkeys(("upgrade",), OTHER_RELEASE),
    inapplicable=inapplicable,
)
