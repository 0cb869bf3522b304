"""Rules for engine settings: lengths, memory and sleep in colocate mode, and rollout sampling."""

from __future__ import annotations

from collections.abc import Iterator

from diagnostics.findings import Severity
from diagnostics.lint.dialects.derivation import NEUTRAL, truncates
from diagnostics.lint.rules.registry import Problem, rule
from diagnostics.lint.run_plan import RunPlan

MEMORY = "memory and sleep"
# Our estimate of the share above which even a small colocated model runs out of memory.
_CROWDED_SHARE = 0.8


@rule("CFG103", check="lengths", frameworks=("verl",))
def batched_tokens_fit(plan: RunPlan) -> Iterator[Problem]:
    """One step of the engine has to take as many tokens as a sequence may have."""
    prompt, completion = plan.whole_number("data.max_prompt"), plan.whole_number("data.max_completion")
    batched = plan.whole_number("engine.max_batched_tokens")
    if prompt is None or completion is None or batched is None:
        return
    names = ("engine.max_batched_tokens", "data.max_prompt", "data.max_completion")
    limit = plan.whole_number("engine.max_length") or prompt + completion
    asynchronous = plan.values.get("rollout.async")
    if plan.get("engine.chunked_prefill") is not True or batched >= limit:
        return
    # The asynchronous server of these releases has no such check.
    synchronous = asynchronous is None or asynchronous.data is False
    if not synchronous or plan.get("rollout.engine") not in {"vllm", None}:
        return
    yield Problem(
        f"With chunked prefill max_num_batched_tokens {batched} is less than the {limit} tokens of a sequence: verl "
        "refuses it.",
        plan.evidence(*names, "engine.chunked_prefill"),
        applies=plan.versions.within("verl", ">=0.3,<0.7"),
        fix=f"Set actor_rollout_ref.rollout.max_num_batched_tokens={limit}",
    )


@rule("CFG105", check=MEMORY, warnings_only=True)
def engine_leaves_memory(plan: RunPlan) -> Iterator[Problem]:
    """A colocated engine that never sleeps has to leave the trainer enough memory."""
    share = plan.number("engine.memory_share")
    if plan.get("rollout.mode") != "colocate" or share is None or not _CROWDED_SHARE <= share <= 1:
        return
    if plan.get("engine.sleep") or plan.get("rollout.engine") not in {"vllm", None}:
        return
    sleeps = plan.values.get("engine.sleep")
    if plan.framework in {"verl", "easyr1"} and (sleeps is None or sleeps.data is not False):
        return
    if any(not value.known for value in plan.evidence("engine.sleep", "engine.sleep_level")):
        return
    yield Problem(
        f"The engine takes {share:g} of each GPU's memory and keeps it while the trainer works there; sleep is off.",
        plan.evidence("engine.memory_share", _sleep_name(plan), "rollout.mode"),
        fix="Turn sleep on if the release has it, or give the engine a share that leaves room for weights, gradients "
        "and optimizer.",
        severity=Severity.WARNING,
    )


def _sleep_name(plan: RunPlan) -> str:
    return "engine.sleep_level" if "engine.sleep_level" in plan.values else "engine.sleep"


@rule("CFG106", check=MEMORY, frameworks=("trl", "ms-swift"), role="train")
def sleep_has_an_effect(plan: RunPlan) -> Iterator[Problem]:
    """Sleep is for an engine on the trainer's devices."""
    sleep = plan.values.get("engine.sleep_level") or plan.values.get("engine.sleep")
    if sleep is None or sleep.soft or not sleep.known or not sleep.data:
        return
    mode = plan.get("rollout.mode")
    if mode in {"server", "async"}:
        effect = (
            "a server ignores it" if mode == "server" else "it costs time and frees memory that nothing needs"
        )
        yield Problem(
            f"{sleep.key} is set, but the engine has its own devices: {effect}.",
            [sleep, *plan.evidence("rollout.mode")],
            fix=f"Leave {sleep.key} out.",
            severity=Severity.INFO,
        )


@rule("CFG112", check=MEMORY)
def allocator_allows_sleep(plan: RunPlan) -> Iterator[Problem]:
    """Sleep in vLLM needs a memory pool, which PyTorch does not support with expandable segments."""
    # EasyR1 starts its workers without the shell's variables (verl/trainer/main.py since 0.3.0).
    if plan.get("memory.expandable") is not True or plan.framework == "easyr1":
        return
    # verl's engine sleeps unless that is turned off.
    if plan.framework == "verl" and plan.get("rollout.mode") == "colocate":
        sleeps = plan.get("engine.sleep") is not False
    else:
        sleeps = bool(plan.get("engine.sleep"))
    if sleeps and plan.get("rollout.engine") in {"vllm", None}:
        yield Problem(
            "PYTORCH_CUDA_ALLOC_CONF enables expandable segments, with which an engine that sleeps does not start in "
            "vLLM 0.8.0 to 0.20.0.",
            plan.evidence("memory.allocator", _sleep_name(plan)),
            package="vllm",
            fix="Remove expandable_segments:True from PYTORCH_CUDA_ALLOC_CONF.",
            applies=plan.versions.within("vllm", ">=0.8.0,<0.20.1"),
        )


@rule("NUM002", check="sampling", role="train", warnings_only=True)
def sampling_is_not_truncated(plan: RunPlan) -> Iterator[Problem]:
    """With top_p, top_k or min_p the engine samples from a part of the vocabulary, and the trainer scores all of it."""
    if plan.get("sampling.truncated") is not True:
        return
    values = [value for name in NEUTRAL for value in plan.evidence(name) if truncates(name, value)]
    yield Problem(
        f"Rollouts are sampled with {', '.join(value.as_text for value in values)}, but the trainer scores the whole "
        "vocabulary: the importance ratio is biased.",
        values,
        fix="Train with top_p 1, top_k off and no min_p; use them in evaluation.",
        severity=Severity.WARNING,
    )


@rule("NUM001", check="sampling", frameworks=("trl",), role="train", warnings_only=True)
def logprobs_include_temperature(plan: RunPlan) -> Iterator[Problem]:
    """A trainer that relies on the engine's log-probs needs them after the temperature."""
    temperature = plan.number("sampling.temperature")
    if temperature in {None, 1.0} or plan.get("engine.logprobs_mode") == "raw_logprobs":
        return
    if plan.get("rollout.engine") != "vllm" or plan.get("train.correction") is False:
        return
    # TRL uses the engine's log-probs from 0.23.0 on, processed ones since 0.24.0, and from a server since 0.27.1.
    fixed_in = "0.27.1" if plan.get("rollout.mode") == "server" else "0.24"
    if plan.versions.within("trl", f">=0.23,<{fixed_in}"):
        yield Problem(
            f"The temperature is {temperature:g}, and this TRL corrects with log-probs that the engine reports before "
            "it.",
            plan.evidence("sampling.temperature", "rollout.mode", "train.correction"),
            severity=Severity.WARNING,
            fix=f"Set temperature 1.0 or vllm_importance_sampling_correction=False, or use TRL {fixed_in} or newer.",
        )
