"""Lengths: whether prompt and completion fit the engine's limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.lint.rules.registry import Problem, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diagnostics.lint.run_plan import RunPlan


@rule("CFG103", check="lengths", frameworks=("verl",))
def batched_tokens_fit(plan: RunPlan) -> Iterator[Problem]:
    """One step of the engine has to take as many tokens as a sequence may have."""
    prompt, completion = plan.whole("data.max_prompt"), plan.whole("data.max_completion")
    batched = plan.whole("engine.max_batched_tokens")
    if prompt is None or completion is None or batched is None:
        return
    names = ("engine.max_batched_tokens", "data.max_prompt", "data.max_completion")
    limit = plan.whole("engine.max_length") or prompt + completion
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
        plan.evidence(*names, "engine.chunked_prefill"), applies=plan.versions.within("verl", ">=0.3,<0.7"),
        fix=f"Set actor_rollout_ref.rollout.max_num_batched_tokens={limit}",
    )  # fmt: skip
