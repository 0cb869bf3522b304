"""Sampling: what makes the engine's probabilities another thing than the trainer's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.lint.dialects.base import NEUTRAL, cuts_off
from diagnostics.lint.rules.base import found, values
from diagnostics.lint.rules.registered import rule
from diagnostics.output.findings import Severity

if TYPE_CHECKING:
    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.versions import Versions
    from diagnostics.output.findings import Finding


@rule("NUM002", check="sampling", warns=True)
def truncated(plan: RunPlan, versions: Versions) -> list[Finding]:
    """NUM002: the engine samples within a nucleus, the trainer scores the whole vocabulary."""
    del versions
    if plan.role != "train" or plan.get("sampling.truncated") is not True:
        return []
    cuts = [value for name in NEUTRAL for value in values(plan, name) if cuts_off(name, value)]
    told = ", ".join(value.told for value in cuts)
    return found(
        plan, "NUM002", Severity.WARNING,
        f"Rollouts are sampled with {told}: the engine's log-probs are those within what is left, or the ratio is "
        "taken against a policy that would have sampled more.",
        cuts, remedy="Train with top_p 1, top_k off and no min_p; keep them for evaluation.",
    )  # fmt: skip


@rule("NUM003", check="sampling", beside_table=True, warns=True)
def penalised(plan: RunPlan, versions: Versions) -> list[Finding]:
    """NUM003: a repetition penalty, which only the engine applies."""
    del versions
    penalty = plan.number("sampling.repetition_penalty")
    if plan.role != "train" or penalty is None or penalty == 1:
        return []
    return found(
        plan, "NUM003", Severity.WARNING,
        f"Rollouts are sampled with a repetition penalty of {penalty:g}; the trainer's log-probs know nothing of it.",
        values(plan, "sampling.repetition_penalty"),
        remedy=f"Set {plan.values['sampling.repetition_penalty'].key} to 1.0 for training.",
    )  # fmt: skip


@rule("CFG115", check="sampling")
def greedy(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG115: temperature 0 makes every completion of a group the same."""
    del versions
    temperature = plan.number("sampling.temperature")
    if plan.role != "train" or temperature is None or temperature > 0:
        return []
    return found(
        plan, "CFG115", Severity.WARNING if temperature == 0 else Severity.ERROR,
        f"The temperature of rollouts is {temperature:g}: vLLM refuses it where a group is asked for at once, as does "
        "transformers where TRL samples without vLLM; a trainer that divides by it gets NaN; else the completions of a "
        "group are the same but for rounding."
        if temperature == 0 else f"The temperature is {temperature:g}; none is below 0.",
        values(plan, "sampling.temperature", "group.size"),
        remedy=f"Set {plan.values['sampling.temperature'].key} to 1.0; use 0 for evaluation only.",
    )  # fmt: skip


@rule("NUM001", check="sampling", warns=True)
def raw_logprobs(plan: RunPlan, versions: Versions) -> list[Finding]:
    """NUM001: the engine's log-probs are taken before the temperature, and the trainer relies on them."""
    temperature = plan.number("sampling.temperature")
    if plan.get("engine.logprobs_mode") == "raw_logprobs":
        if temperature == 1:
            return []
        return found(
            plan, "NUM001", Severity.WARNING,
            "The engine reports log-probs before the temperature and before any penalty.",
            values(plan, "engine.logprobs_mode", "sampling.temperature"),
            remedy="Ask for processed_logprobs; vLLM 0.10.0 and 0.10.1 take these before the temperature, too.",
        )  # fmt: skip
    if plan.framework != "trl" or plan.role != "train" or temperature in {None, 1.0}:
        return []
    if plan.get("rollout.engine") != "vllm" or plan.get("train.correction") is False:
        return []
    # TRL takes the engine's log-probs from 0.23.0 on. It asks for processed ones in 0.24.0, the server in 0.27.1.
    first = "0.27.1" if plan.get("rollout.mode") == "server" else "0.24"
    gate = versions.within("trl", f">=0.23,<{first}")
    if gate is not True:
        return []
    return found(
        plan, "NUM001", Severity.WARNING,
        f"The temperature is {temperature:g}, and this TRL corrects by log-probs that the engine reports before it.",
        values(plan, "sampling.temperature", "rollout.mode", "train.correction"),
        remedy=f"Temperature 1.0, vllm_importance_sampling_correction=False, or TRL {first} or newer.",
    )  # fmt: skip


@rule("NUM001", check="sampling", warns=True)
def raw_logprobs_of_a_server(plan: RunPlan, versions: Versions) -> list[Finding]:
    """NUM001: a vLLM server for a trainer, with the log-probs that vLLM reports by default."""
    transfer = plan.settings.items.get("weight_transfer_config")
    if plan.role != "serve" or transfer is None or "engine.logprobs_mode" in plan.values:
        return []
    return found(
        plan, "NUM001", Severity.WARNING,
        "This server takes its weights from a trainer, and reports log-probs before the temperature unless told.",
        [transfer], remedy="--logprobs-mode processed_logprobs, or temperature 1.0 in the trainer.",
        gate=versions.within("vllm", ">=0.10.0"), package="vllm",
    )  # fmt: skip
