"""Rules for engine settings: lengths, memory and sleep in colocate mode, and rollout sampling."""

from __future__ import annotations

from collections.abc import Iterator

from diagnostics.findings import Severity
from diagnostics.lint.derivation import NEUTRAL, truncates
from diagnostics.lint.rules.registry import Problem, rule
from diagnostics.lint.run_plan import RunPlan

MEMORY = "memory and sleep"
# Our estimate of the share above which even a small colocated model runs out of memory.
_CROWDED_SHARE = 0.8


@rule("CFG105", check=MEMORY, warnings_only=True)
def engine_leaves_memory(plan: RunPlan) -> Iterator[Problem]:
    """A colocated engine that never sleeps has to leave the trainer enough memory."""
    share = plan.number("engine.memory_share")
    if plan.get("rollout.mode") != "colocate" or share is None or not _CROWDED_SHARE <= share <= 1:
        return
    if plan.get("engine.sleep") or plan.get("engine.shares_weights"):
        return
    if plan.get("rollout.engine") not in {"vllm", None}:
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


@rule("NUM002", check="sampling", role="train", warnings_only=True)
def sampling_is_not_truncated(plan: RunPlan) -> Iterator[Problem]:
    """With top_p, top_k or min_p the engine samples from a part of the vocabulary, and the trainer scores all of it."""
    if plan.get("sampling.truncated") is not True or plan.get("train.scores_truncated"):
        return
    values = [value for name in NEUTRAL for value in plan.evidence(name) if truncates(name, value)]
    yield Problem(
        f"Rollouts are sampled with {', '.join(value.as_text for value in values)}, but the trainer scores the whole "
        "vocabulary: the importance ratio is biased.",
        values,
        fix="Train with top_p 1, top_k off and no min_p; use them in evaluation.",
        severity=Severity.WARNING,
    )
