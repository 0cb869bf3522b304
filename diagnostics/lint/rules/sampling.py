"""Sampling: settings that make the engine's distribution differ from the trainer's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.findings import Severity
from diagnostics.lint.dialects.derivation import NEUTRAL, truncates
from diagnostics.lint.rules.registry import Problem, rule

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


@rule("NUM001", check=CHECK, frameworks=("trl",), role="train", warns=True)
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
            plan.evidence("sampling.temperature", "rollout.mode", "train.correction"), severity=Severity.WARNING,
            fix=f"Set temperature 1.0 or vllm_importance_sampling_correction=False, or use TRL {fixed_in} or newer.",
        )  # fmt: skip
