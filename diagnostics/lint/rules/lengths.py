"""Lengths: whether prompt and completion fit the engine's limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.lint.rules.registry import Problem, rule
from diagnostics.output.findings import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diagnostics.lint.run_plan import RunPlan


@rule("CFG103", check="lengths", role="train", warns=True)
def model_length_fits(plan: RunPlan) -> Iterator[Problem]:
    """Prompt and completion together must not be longer than the engine's longest sequence."""
    limit, completion = plan.whole("engine.max_length"), plan.whole("data.max_completion")
    if limit is None or completion is None or plan.get("rollout.mode") == "server" or plan.get("rollout.multi_turn"):
        return
    prompt, key = plan.whole("data.max_prompt"), plan.values["engine.max_length"].key
    if completion >= limit:
        yield Problem(
            f"A completion may have {completion} tokens, but a whole sequence {limit}: none can reach its limit, and "
            "each long one counts as truncated.",
            plan.evidence("engine.max_length", "data.max_completion"),
            fix=f"Set {key} to the longest prompt plus {completion}.", severity=Severity.WARNING,
        )  # fmt: skip
    elif prompt is not None and prompt + completion > limit:
        yield Problem(
            f"Prompt and completion may have {prompt + completion} tokens ({prompt} + {completion}), and the engine "
            f"stops at {limit}.",
            plan.evidence("engine.max_length", "data.max_prompt", "data.max_completion"),
            fix=f"Set {key} to {prompt + completion}, or lower one of the two.", severity=Severity.WARNING,
        )  # fmt: skip


@rule("CFG103", check="lengths", frameworks=("verl", "easyr1"))
def batched_tokens_fit(plan: RunPlan) -> Iterator[Problem]:
    """One step of the engine has to take as many tokens as a sequence may have."""
    prompt, completion = plan.whole("data.max_prompt"), plan.whole("data.max_completion")
    batched = plan.whole("engine.max_batched_tokens")
    if prompt is None or completion is None or batched is None:
        return
    names = ("engine.max_batched_tokens", "data.max_prompt", "data.max_completion")
    if plan.framework == "easyr1":
        if batched < prompt + completion:
            yield Problem(
                f"max_num_batched_tokens {batched} is less than prompt {prompt} + response {completion}: EasyR1 "
                "refuses it.",
                plan.evidence(*names), fix=f"Set worker.rollout.max_num_batched_tokens={prompt + completion}",
            )  # fmt: skip
        return
    limit = plan.whole("engine.max_length") or prompt + completion
    asynchronous = plan.values.get("rollout.async")
    if plan.get("engine.chunked_prefill") is not True or batched >= limit:
        return
    # The asynchronous server of these releases has no such check.
    if (asynchronous is not None and asynchronous.data is not False) or plan.get("rollout.engine") not in {"vllm", None}:
        return
    yield Problem(
        f"With chunked prefill max_num_batched_tokens {batched} is less than the {limit} tokens of a sequence: verl "
        "refuses it.",
        plan.evidence(*names, "engine.chunked_prefill"), applies=plan.versions.within("verl", ">=0.3,<0.7"),
        fix=f"Set actor_rollout_ref.rollout.max_num_batched_tokens={limit}",
    )  # fmt: skip
