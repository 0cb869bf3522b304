"""Options: those a release does not have, and those that exclude each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.lint.dialects.openrlhf import spelled
from diagnostics.lint.rules.base import found, values
from diagnostics.lint.rules.registered import rule
from diagnostics.output.findings import Severity

if TYPE_CHECKING:
    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.values import Value
    from diagnostics.lint.versions import Versions
    from diagnostics.output.findings import Finding

# framework -> option -> (releases that refuse or do not know it, what to write there)
GONE = {
    "trl": {
        "vllm_device": (">=0.18", "vllm_mode"),
        "vllm_dtype": (">=0.18", "nothing: the model's own"),
        "vllm_max_model_len": (">=0.18", "vllm_max_model_length, from 0.26 on"),
        "vllm_enable_prefix_caching": (">=0.18", "nothing: the engine's own default"),
        "max_prompt_length": (">=0.28", "nothing: cut prompts in the data set"),
        "vllm_guided_decoding_regex": (">=0.28", "vllm_structured_outputs_regex"),
        "vllm_mode": ("<0.18", "vllm_device up to 0.15, nothing in 0.16 and 0.17"),
        "vllm_tensor_parallel_size": ("<0.18", "--tensor_parallel_size of trl vllm-serve"),
        "steps_per_generation": ("<0.18", "gradient_accumulation_steps"),
        "generation_batch_size": ("<0.18", "gradient_accumulation_steps"),
        "vllm_enable_sleep_mode": ("<0.23", "nothing"),
        "num_generations_eval": ("<0.26", "num_generations"),
    },
    "ms-swift": {
        "num_infer_workers": (">=3.6", "vllm_mode colocate, or vllm_mode server with swift rollout"),
        "vllm_device": (">=3.6", "CUDA_VISIBLE_DEVICES"),
        "vllm_mode": ("<3.5", "num_infer_workers"),
    },
}


@rule("CFG113", check="options")
def renamed(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG113: options that the release does not have. Only where the release is known."""
    out: list[Finding] = []
    if plan.role != "train":
        return out
    for option, (releases, instead) in GONE.get(plan.framework, {}).items():
        value = plan.settings.items.get(option)
        if value is None or not versions.within(plan.framework, releases):
            continue
        release = versions.known[plan.framework]
        severity, more = Severity.ERROR, ""
        if passed_over(plan, value, versions):
            severity, more = (
                Severity.WARNING,
                " In a config file TRL before 0.19 passes over what it does not know.",
            )
        out += found(
            plan, "CFG113", severity,
            f"{plan.framework} {release} has no option {option}.{more}", [value], remedy=f"Instead: {instead}.",
        )  # fmt: skip
    return out


def passed_over(plan: RunPlan, value: Value, versions: Versions) -> bool:
    """Tells whether TRL's parser passes over it: up to 0.18 it did so with keys of a file, never with options."""
    written = value.place.file.endswith((".yaml", ".yml"))
    return plan.framework == "trl" and written and versions.within("trl", "<0.19") is True


@rule("CFG113", check="options")
def verl_sync(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG113: verl's rollout.mode=sync, refused from 0.7.0 on."""
    value = plan.settings.items.get("actor_rollout_ref.rollout.mode")
    if plan.framework != "verl" or value is None or value.data != "sync":
        return []
    return found(
        plan, "CFG113", Severity.ERROR, "rollout.mode=sync was removed in verl 0.7.0 and is refused since.", [value],
        remedy="Leave it out, or set it to async.", gate=versions.within("verl", ">=0.7"),
    )  # fmt: skip


@rule("CFG113", check="options")
def openrlhf_spelling(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG113: OpenRLHF's flags are dotted from 0.10.2 on, and flat before."""
    if plan.framework != "openrlhf":
        return []
    from diagnostics.lint.dialects.openrlhf import FLAGS

    dotted_now = versions.within("openrlhf", ">=0.10.2")
    items = plan.settings.items
    if dotted_now is None:
        return []
    out: list[Finding] = []
    for dotted, flat in FLAGS.values():
        wrong, right = (flat, dotted) if dotted_now else (dotted, flat)
        if wrong in items:
            release = versions.known["openrlhf"]
            out += found(
                plan, "CFG113", Severity.ERROR, f"OpenRLHF {release} has no flag --{wrong}.", [items[wrong]],
                remedy=f"Instead: --{right}.",
            )  # fmt: skip
    return out


@rule("CFG111", check="options")
def exclusive(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG111: settings that a framework refuses together."""
    out: list[Finding] = []
    if plan.framework == "openrlhf" and plan.get("rollout.partial") and plan.get("rollout.async") is False:
        out += found(
            plan, "CFG111", Severity.ERROR, "Partial rollouts need an asynchronous run; OpenRLHF refuses them alone.",
            values(plan, "rollout.partial", "rollout.async"),
            remedy=spelled(plan.settings, "Add --train.async_enable."),
        )  # fmt: skip
    if plan.framework == "ms-swift" and plan.get("rollout.async") and plan.get("rollout.multi_turn"):
        out += found(
            plan, "CFG111", Severity.ERROR, "ms-swift refuses async_generate with a multi-turn scheduler.",
            values(plan, "rollout.async", "rollout.multi_turn"), remedy="Leave --async_generate out.",
            gate=versions.within("ms-swift", ">=3.5") is not False,
        )  # fmt: skip
    strategy = plan.settings.items.get("truncation_strategy")
    if plan.framework == "ms-swift" and plan.role == "train" and strategy is not None and strategy.known:
        # 3.2 sets it to left by itself, whatever is said.
        left_alone = versions.within("ms-swift", ">=3.3,<3.7") is True
        if strategy.data not in ({"left", None} if left_alone else {"left", "delete", None}):
            out += found(
                plan, "CFG111", Severity.ERROR,
                f"GRPO in ms-swift takes truncation_strategy left, and delete since 3.7; {strategy.data} is refused.",
                [strategy], remedy="--truncation_strategy left.",
                gate=versions.within("ms-swift", ">=3.3") is not False,
            )  # fmt: skip
    stages = plan.whole("engine.pipeline_parallel")
    if plan.framework == "verl" and stages is not None and stages > 1:
        out += found(
            plan, "CFG111", Severity.ERROR, "verl's rollout engines take no pipeline parallelism.",
            values(plan, "engine.pipeline_parallel"), remedy="actor_rollout_ref.rollout.pipeline_model_parallel_size=1",
            gate=versions.within("verl", ">=0.6") is not False,
        )  # fmt: skip
    return out
