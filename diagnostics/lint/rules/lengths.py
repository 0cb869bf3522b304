"""Lengths: whether a prompt and its completion fit where they have to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.lint.rules.base import found, values
from diagnostics.lint.rules.registered import rule
from diagnostics.lint.values import Place, Value
from diagnostics.output.findings import Severity

_NOT_ASYNC = Value(False, Place("default of verl"))

if TYPE_CHECKING:
    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.versions import Versions
    from diagnostics.output.findings import Finding


@rule("CFG103", check="lengths", warns=True)
def model_length(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG103: prompt and completion together are longer than the engine was told a sequence can be."""
    del versions
    limit, completion = plan.whole("engine.max_length"), plan.whole("data.max_completion")
    if limit is None or completion is None or plan.role != "train" or plan.get("rollout.mode") == "server":
        return []
    prompt = plan.whole("data.max_prompt")
    if plan.get("rollout.multi_turn"):
        return []
    key = plan.values["engine.max_length"].key
    if completion >= limit:
        return found(
            plan, "CFG103", Severity.WARNING,
            f"A completion may have {completion} tokens and a whole sequence {limit}: no completion can reach its "
            "limit, and each that tries is cut as if it were too long.",
            values(plan, "engine.max_length", "data.max_completion"),
            remedy=f"Set {key} to the longest prompt plus {completion}.",
        )  # fmt: skip
    if prompt is None or prompt + completion <= limit or "data.max_prompt" not in plan.values:
        return []
    return found(
        plan, "CFG103", Severity.WARNING,
        f"{prompt} tokens of prompt and {completion} of completion are {prompt + completion}; the engine stops at "
        f"{limit}.",
        values(plan, "engine.max_length", "data.max_prompt", "data.max_completion"),
        remedy=f"Set {key} to {prompt + completion}, or lower one of the two.",
    )  # fmt: skip


@rule("CFG103", check="lengths")
def batched_tokens(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG103: one step of the engine takes fewer tokens than a sequence may have."""
    if plan.framework not in {"verl", "easyr1"}:
        return []
    prompt, completion = plan.whole("data.max_prompt"), plan.whole("data.max_completion")
    batched = plan.whole("engine.max_batched_tokens")
    if prompt is None or completion is None or batched is None:
        return []
    limit = plan.whole("engine.max_length") or prompt + completion
    names = ("engine.max_batched_tokens", "data.max_prompt", "data.max_completion")
    if plan.framework == "easyr1":
        if batched >= prompt + completion:
            return []
        return found(
            plan, "CFG103", Severity.ERROR,
            f"max_num_batched_tokens {batched} is less than prompt {prompt} + response {completion}: EasyR1 refuses "
            "it.",
            values(plan, *names), remedy=f"worker.rollout.max_num_batched_tokens={prompt + completion}",
        )  # fmt: skip
    if (
        plan.get("engine.chunked_prefill") is not True
        or batched >= limit
        # The asynchronous server of these releases has no such check.
        or plan.values.get("rollout.async", _NOT_ASYNC).data is not False
        or plan.get("rollout.engine") not in {"vllm", None}
    ):
        return []
    return found(
        plan, "CFG103", Severity.ERROR,
        f"With chunked prefill max_num_batched_tokens {batched} is less than the {limit} tokens of a sequence: "
        "verl refuses it.",
        values(plan, *names, "engine.chunked_prefill"), package="verl",
        remedy=f"actor_rollout_ref.rollout.max_num_batched_tokens={limit}",
        gate=versions.within("verl", ">=0.3,<0.7"),
    )  # fmt: skip
