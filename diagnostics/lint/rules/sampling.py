"""Sampling: settings that make the engine's distribution differ from the trainer's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.lint.dialects.derivation import NEUTRAL, truncates
from diagnostics.lint.rules.registry import Problem, rule
from diagnostics.output.findings import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diagnostics.lint.run_plan import RunPlan

CHECK = "sampling"


@rule("NUM002", check=CHECK, role="train", warns=True)
def sampling_is_not_truncated(plan: RunPlan) -> Iterator[Problem]:
    """With top_p, top_k or min_p the engine samples from a part of the vocabulary, and the trainer scores all of it."""
    if plan.get("sampling.truncated") is not True:
        return
    values = [value for name in NEUTRAL for value in plan.evidence(name) if truncates(name, value)]
    yield Problem(
        f"Rollouts are sampled with {', '.join(value.as_text for value in values)}, but the trainer scores the whole "
        "vocabulary: the importance ratio is biased.",
        values, fix="Train with top_p 1, top_k off and no min_p; use them in evaluation.", severity=Severity.WARNING,
    )  # fmt: skip


@rule("NUM003", check=CHECK, role="train", uses_table=True, warns=True)
def sampling_has_no_penalty(plan: RunPlan) -> Iterator[Problem]:
    """A repetition penalty changes the engine's distribution only."""
    penalty = plan.number("sampling.repetition_penalty")
    if penalty is not None and penalty != 1:
        yield Problem(
            f"Rollouts are sampled with a repetition penalty of {penalty:g}, which the trainer's log-probs do not "
            "include.",
            plan.evidence("sampling.repetition_penalty"), severity=Severity.WARNING,
            fix=f"Set {plan.values['sampling.repetition_penalty'].key} to 1.0 for training.",
        )  # fmt: skip


@rule("CFG115", check=CHECK, role="train")
def temperature_is_positive(plan: RunPlan) -> Iterator[Problem]:
    """Greedy sampling (temperature 0) makes all completions of a group identical."""
    temperature = plan.number("sampling.temperature")
    if temperature is None or temperature > 0:
        return
    greedy = temperature == 0
    message = (
        f"The rollout temperature is {temperature:g} (greedy): all completions of a group are the same but for rounding. "
        "vLLM refuses it for n > 1, and a trainer that divides by it gets NaN."
        if greedy
        else f"The rollout temperature is {temperature:g}; it cannot be below 0."
    )
    yield Problem(
        message,
        plan.evidence("sampling.temperature", "group.size"),
        fix=f"Set {plan.values['sampling.temperature'].key} to 1.0; use 0 for evaluation only.",
        severity=Severity.WARNING if greedy else Severity.ERROR,
    )


@rule("NUM001", check=CHECK, warns=True)
def logprobs_include_temperature(plan: RunPlan) -> Iterator[Problem]:
    """A trainer that relies on the engine's log-probs needs them after the temperature."""
    temperature = plan.number("sampling.temperature")
    if plan.get("engine.logprobs_mode") == "raw_logprobs":
        if temperature != 1:
            yield Problem(
                "The engine reports log-probs before temperature and penalties (raw_logprobs).",
                plan.evidence("engine.logprobs_mode", "sampling.temperature"), severity=Severity.WARNING,
                fix="Use processed_logprobs; vLLM 0.10.0 and 0.10.1 take these before the temperature, too.",
            )  # fmt: skip
        return
    if plan.framework != "trl" or plan.role != "train" or temperature in {None, 1.0}:
        return
    if plan.get("rollout.engine") != "vllm" or plan.get("train.correction") is False:
        return
    # TRL uses the engine's log-probs from 0.23.0 on. It requests processed ones since 0.24.0, from a server since 0.27.1.
    fixed_in = "0.27.1" if plan.get("rollout.mode") == "server" else "0.24"
    if plan.versions.within("trl", f">=0.23,<{fixed_in}"):
        yield Problem(
            f"The temperature is {temperature:g}, and this TRL corrects with log-probs that the engine reports before "
            "it.",
            plan.evidence("sampling.temperature", "rollout.mode", "train.correction"), severity=Severity.WARNING,
            fix=f"Set temperature 1.0 or vllm_importance_sampling_correction=False, or use TRL {fixed_in} or newer.",
        )  # fmt: skip


@rule("NUM001", check=CHECK, role="serve", warns=True)
def server_logprobs_include_temperature(plan: RunPlan) -> Iterator[Problem]:
    """A vLLM server for a trainer reports log-probs before the temperature by default."""
    transfer = plan.option("weight_transfer_config")
    if transfer is not None and "engine.logprobs_mode" not in plan.values:
        yield Problem(
            "This server takes its weights from a trainer, and by default reports log-probs before the temperature.",
            [transfer], fix="Add --logprobs-mode processed_logprobs, or use temperature 1.0 in the trainer.",
            applies=plan.versions.within("vllm", ">=0.10.0"), package="vllm", severity=Severity.WARNING,
        )  # fmt: skip
