"""SYN003: sample with TRL's unmodified colocated engine in sleep mode, which reloads the checkpoint from disk.

With sleep mode on, TRL's `VLLMGeneration.generate` wakes the engine and calls vLLM's `reload_weights`. This replaces
the weights that `sync_weights` had pushed, so rollouts come from the base model.

Two things differ from a GPU:

- vLLM's CPU build refuses sleep mode when the engine starts, and ignores `sleep` and `wake_up` after that, so the flag
  of TRL's class is set after the start.
- The CPU build repacks its weights, so that TRL cannot push single parameters; the same tensors are loaded by
  `reload_weights` with an iterator.
"""

import inspect
import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from repro import upstream
from repro.drivers import tiny_trl, whole_engine
from repro.registry import Tally, Trigger, repro

_NAMES = ("trl",)
RELOADS = 'collective_rpc("reload_weights")'
# TRL leaves the dtype to vLLM, which computes in bfloat16 on a CPU; with the right weights, log-probs differ by less.
TOLERANCE = 0.2


def _start_generation(model: Any) -> Any:
    """Start TRL's colocated engine on a model that was loaded from a folder, and push the model's weights."""
    # TRL does not set eager mode; without a compiler the graph runs as it is.
    os.environ.update(whole_engine.environment() | {"VLLM_USE_AOT_COMPILE": "0"})
    from trl.generation.vllm_generation import VLLMGeneration

    # TRL before 1.0 has the option `is_fsdp_enabled`.
    options = inspect.signature(VLLMGeneration.__init__).parameters
    generation = VLLMGeneration(
        model=model,
        accelerator=import_module("accelerate").Accelerator(cpu=True),
        **({"is_fsdp_enabled": False} if "is_fsdp_enabled" in options else {}),
        processing_class=tiny_trl.tokenizer(),
        mode="colocate",
        max_model_length=whole_engine.MAX_MODEL_LEN,
        max_completion_length=24,
        enable_sleep_mode=False,  # the CPU build refuses it
        logprobs=0,
        generation_kwargs={"ignore_eos": True, "seed": 3},
    )
    _push(generation, model)  # like the trainer's first synchronisation
    return generation


def _push(generation: Any, model: Any) -> None:
    """Send a model's weights to the engine, and reset the engine's prefix cache."""
    whole_engine.push_weights(generation.llm, model)
    generation.llm.reset_prefix_cache()


def _sample(generation: Any) -> list[whole_engine.SampledCompletion]:
    """Generate with TRL's class; return completions with the log-prob of each token."""
    options = inspect.signature(generation.generate).parameters
    images = {"images": None} if "images" in options else {}
    prompts = [list(prompt) for prompt in whole_engine.PROMPTS]
    result = generation.generate(prompts, num_generations=1, **images)
    return [
        whole_engine.SampledCompletion(tuple(prompt), tuple(ids), tuple(map(sampled_logprob, logprobs)))
        for prompt, ids, logprobs in zip(whole_engine.PROMPTS, result[1], result[2], strict=True)
    ]


def sampled_logprob(value: Any) -> float:
    """Return the log-prob of a sampled token from TRL's value, a number or, in newer releases, a list."""
    return float(value[0] if isinstance(value, list) else value)


def _generate_in_sleep_mode(mitigation: str | None) -> Tally:
    """Generate after a weight update with sleep mode on."""
    from transformers import AutoModelForCausalLM

    folder = whole_engine.save(whole_engine.model(0))
    tiny_trl.tokenizer().save_pretrained(folder)
    base, policy = (AutoModelForCausalLM.from_pretrained(folder).float().eval() for _ in range(2))
    generation = _start_generation(policy)
    generation.enable_sleep_mode = mitigation != "sleep_off"
    policy.load_state_dict(whole_engine.model(1).state_dict())  # the optimizer step
    _push(generation, policy)
    if mitigation == "checkpoint_on_disk":
        policy.save_pretrained(folder, safe_serialization=True)
    samples = _sample(generation)
    by_model = (
        [value for sample in samples for value in whole_engine.trainer_logprobs(model, sample)]
        for model in (policy, base)
    )
    return count_policy_logprobs([value for sample in samples for value in sample.logprobs], *by_model)


def count_policy_logprobs(engine: Sequence[float], policy: Sequence[float], base: Sequence[float]) -> Tally:
    """Count the log-probs within TOLERANCE of the policy's, and note how many are within it of the base model's."""
    differences = [abs(a - b) for a, b in zip(engine, policy, strict=True)]
    passed = {f"token {index}": value <= TOLERANCE for index, value in enumerate(differences)}
    old = sum(abs(a - b) <= TOLERANCE for a, b in zip(engine, base, strict=True))
    mean = sum(differences) / len(differences)
    note = f"mean difference {mean:.2g}; {old} of {len(engine)} are the base model's"
    return Tally.of_checks(passed, "log-probs are the policy's", note)


def inapplicable_reason() -> str | None:
    """Return the reason why the failure cannot occur with the installed TRL and vLLM; None if it can."""
    # TRL 0.28 and newer have the file.
    return (
        upstream.explain_missing_code("trl/generation/vllm_generation.py", RELOADS, _NAMES)
        or whole_engine.inapplicable_reason()
    )


repro(
    "SYN003",
    distributions=_NAMES,
    modules=("torch", "transformers", "vllm", "accelerate", "trl.generation.vllm_generation"),
    simulated=(
        "sleep and wake, which the CPU build ignores",
        "the push of each parameter: the same tensors by reload_weights with an iterator",
        "the optimizer step: another model's weights",
    ),
    triggers=[Trigger("asleep", _generate_in_sleep_mode, silent=True)],
    inapplicable_reason=inapplicable_reason,
)
