"""CFG111: what a framework refuses because something that it builds on is missing, or because two things never met.

Each refusal names the releases whose source has the check, as read in every tag; `tests/diagnostics/programs/
lint_against.py` asks the frameworks themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics.lint.dialects import openrlhf
from diagnostics.lint.rules.base import found, values
from diagnostics.lint.rules.registered import rule
from diagnostics.lint.values import Value
from diagnostics.output.findings import Severity

if TYPE_CHECKING:
    from collections.abc import Callable

    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.versions import Versions
    from diagnostics.output.findings import Finding

_ACTOR = "actor_rollout_ref.actor."
_ROLLOUT = "actor_rollout_ref.rollout."
_MODEL = "actor_rollout_ref.model."
# What verl's actor can average its loss over; token-sum came with 0.9, or a little before.
_AGGREGATIONS = {
    "token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
    "token-sum",
}


@dataclass(frozen=True)
class Wrong:
    """What a refusal found: a sentence, the values it rests on, what to do."""

    detail: str
    values: tuple[Value, ...]
    remedy: str


@dataclass(frozen=True)
class Refusal:
    """A check of a framework's own: in which releases, and how it is made here."""

    framework: str
    releases: str
    look: Callable[[RunPlan], Wrong | None]


def item(plan: RunPlan, *names: str) -> Value | None:
    """The first of these settings that is there, in the framework's own words."""
    return next((plan.settings.items[name] for name in names if name in plan.settings.items), None)


def on(plan: RunPlan, *names: str) -> Value | None:
    """The same, where its value is known and is neither false, null, nought nor empty."""
    value = item(plan, *names)
    return (
        value if value is not None and value.known and value.data not in (False, None, 0, "", "no") else None
    )


def missing(plan: RunPlan, *names: str) -> bool:
    """Tells whether none of these can be set: nothing more is set where nobody sees it, and these are not, or null."""
    if plan.settings.open or plan.settings.passes or plan.settings.lost:
        return False
    value = item(plan, *names)
    return value is None or (value.known and value.data in (None, False, ""))


@rule("CFG111", check="options")
def refused(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG111: every refusal of the plan's framework that this plan meets."""
    out: list[Finding] = []
    for refusal in REFUSALS if plan.role == "train" else ():
        wrong = refusal.look(plan) if refusal.framework == plan.framework else None
        if wrong is not None:
            out += found(
                plan, "CFG111", Severity.ERROR, wrong.detail, wrong.values,
                remedy=openrlhf.spelled(plan.settings, wrong.remedy) if plan.framework == "openrlhf" else wrong.remedy,
                gate=versions.within(plan.framework, refusal.releases), alone=True,
            )  # fmt: skip
    return out


def _trl_batch_finder(plan: RunPlan) -> Wrong | None:
    value = on(plan, "auto_find_batch_size")
    detail = "TRL refuses auto_find_batch_size: a smaller batch would no longer hold whole groups."
    return Wrong(detail, (value,), "Lower per_device_train_batch_size instead.") if value else None


def _trl_hub_completions(plan: RunPlan) -> Wrong | None:
    value = on(plan, "log_completions_hub_repo")
    if value is None or not missing(plan, "log_completions"):
        return None
    return Wrong(
        "log_completions_hub_repo is set, and log_completions is not.", (value,), "Set log_completions."
    )


def _trl_reference(plan: RunPlan) -> Wrong | None:
    value, beta = on(plan, "sync_ref_model"), item(plan, "beta")
    if value is None or beta is None or beta.data not in (0, 0.0) or isinstance(beta.data, bool):
        return None
    detail = "sync_ref_model needs a reference model, and with beta 0 there is none."
    # With an adapter it is refused whatever beta is.
    above = "" if on(plan, "use_peft") else "Set beta above 0, or leave"
    return Wrong(detail, (value, beta), f"{above or 'Leave'} sync_ref_model out.")


def _swift_overlong(plan: RunPlan) -> Wrong | None:
    rewards = item(plan, "reward_funcs")
    if rewards is None or "soft_overlong" not in _listed(rewards) or not missing(plan, "soft_cache_length"):
        return None
    return Wrong(
        "The reward soft_overlong needs soft_cache_length.", (rewards,), "Add --soft_cache_length N."
    )


def _swift_cached(plan: RunPlan) -> Wrong | None:
    value = on(plan, "cached_dataset")
    detail = "ms-swift refuses cached_dataset for GRPO."
    return Wrong(detail, (value,), "Give the data with --dataset.") if value else None


def _swift_no_reward(plan: RunPlan) -> Wrong | None:
    sources = (
        "reward_funcs",
        "reward_model",
        "teacher_model",
        "teacher_model_server",
        "gym_env",
        "use_gym_env",
    )
    if (
        plan.get("rollout.mode") == "server"
        or "megatron" in plan.settings.items
        or not missing(plan, *sources)
    ):
        return None
    if not missing(plan, *sources) or item(plan, *sources, "config", "@") is not None:
        return None
    kind = item(plan, "rlhf_type")
    if kind is None:
        return None
    return Wrong("Neither reward_funcs nor reward_model is set.", (kind,), "Add --reward_funcs NAME...")


def _swift_weights(plan: RunPlan) -> Wrong | None:
    weights, rewards = item(plan, "reward_weights"), item(plan, "reward_funcs")
    if weights is None or rewards is None or not weights.known or not rewards.known:
        return None
    if item(plan, "reward_model", "use_gym_env") is not None or plan.settings.open:
        return None
    numbers, names = _listed(weights), _listed(rewards)
    if len(numbers) == len(names):
        return None
    detail = f"{len(numbers)} reward_weights for {len(names)} reward_funcs."
    return Wrong(detail, (weights, rewards), "Give each reward function one weight.")


def _swift_teachers(plan: RunPlan) -> Wrong | None:
    one, other = on(plan, "teacher_model"), on(plan, "teacher_model_server")
    detail = "teacher_model and teacher_model_server are both set; ms-swift takes one of them."
    return Wrong(detail, (one, other), "Leave one of them out.") if one and other else None


def _swift_liger(option: str, neutral: tuple[object, ...]) -> Callable[[RunPlan], Wrong | None]:
    def look(plan: RunPlan) -> Wrong | None:
        liger, value = on(plan, "use_liger_kernel"), item(plan, option)
        if liger is None or value is None or not value.known or value.data in neutral:
            return None
        detail = f"The Liger loss of ms-swift does not support {option}."
        return Wrong(detail, (liger, value), f"Leave --use_liger_kernel out, or --{option}.")

    return look


def _swift_both_sizes(plan: RunPlan) -> Wrong | None:
    names = ("batch.generation", "batch.steps_per_generation", "batch.per_device", "devices.train")
    given, steps, per_device, processes = (plan.whole(name) for name in names)
    if given is None or steps is None or per_device is None or processes is None:
        return None
    expected = per_device * processes * steps
    if given == expected:
        return None
    detail = f"generation_batch_size is {given}, and by steps_per_generation {steps} it is {expected}."
    return Wrong(detail, tuple(values(plan, *names)), "Leave one of them out.")


def _verl_micro_batch(section: str, name: str) -> Callable[[RunPlan], Wrong | None]:
    """Both spellings of a micro-batch, or none: verl wants exactly one where batches are not cut by tokens."""
    old, new = f"actor_rollout_ref.{section}.{name}", f"actor_rollout_ref.{section}.{name}_per_gpu"

    def look(plan: RunPlan) -> Wrong | None:
        dynamic = plan.values.get("batch.dynamic")
        if dynamic is None or dynamic.data is not False or not _verl_validated(plan):
            return None
        first, second = on(plan, old), on(plan, new)
        if first and second:
            return Wrong(f"{old} and {new} are both set.", (first, second), f"Leave {old} out.")
        shipped = (
            plan.settings.about == "verl.trainer.main_ppo"
            and item(plan, "--config-name", "--config-path") is None
        )
        if not shipped or not missing(plan, old) or not missing(plan, new):
            return None
        if section == "ref" and on(plan, _ACTOR + "use_kl_loss") is None:
            return None
        command = Value(plan.settings.about, plan.settings.place, "python3 -m")
        told = f"{new} is not set, and has no default."
        return Wrong(told, (command, dynamic), f"{new}=8, or use_dynamic_bsz=True.")

    return look


def _verl_validated(plan: RunPlan) -> bool:
    return plan.settings.about in {"", "verl.trainer.main_ppo", "recipe.dapo.main_dapo"}


def _verl_padding(plan: RunPlan) -> Wrong | None:
    parallel, padding = plan.whole("train.sequence_parallel"), item(plan, _MODEL + "use_remove_padding")
    if (
        parallel is None
        or parallel < 2
        or padding is None
        or padding.data is not False
        or not _verl_validated(plan)
    ):
        return None
    detail = f"Sequence parallelism over {parallel} devices needs use_remove_padding."
    return Wrong(
        detail, (*values(plan, "train.sequence_parallel"), padding), f"{_MODEL}use_remove_padding=True"
    )


def _verl_validation(plan: RunPlan) -> Wrong | None:
    samples, temperature = on(plan, _ROLLOUT + "val_kwargs.do_sample"), plan.number("sampling.temperature")
    if samples is None or temperature is None or temperature > 0 or not _verl_validated(plan):
        return None
    detail = f"val_kwargs.do_sample samples in validation, and the rollout's temperature is {temperature:g}."
    return Wrong(
        detail,
        (samples, *values(plan, "sampling.temperature")),
        f"{_ROLLOUT}temperature=1.0, or do_sample=False",
    )


def _verl_aggregation(plan: RunPlan) -> Wrong | None:
    value = item(plan, _ACTOR + "loss_agg_mode")
    if value is None or not isinstance(value.data, str) or value.data in _AGGREGATIONS:
        return None
    return Wrong(f"verl knows no loss_agg_mode {value.data}.", (value,), f"{_ACTOR}loss_agg_mode=token-mean")


def _verl_experts(plan: RunPlan) -> Wrong | None:
    names = ("engine.expert_parallel", "engine.tensor_parallel", "engine.data_parallel")
    experts, tensor = plan.whole(names[0]), plan.whole(names[1])
    data = plan.whole(names[2]) if names[2] in plan.values else 1
    if (
        experts is None
        or experts < 2
        or tensor is None
        or data is None
        or plan.get("rollout.engine") == "trtllm"
    ):
        return None
    if experts == tensor * data:
        return None
    detail = f"expert_parallel_size {experts} is not tensor x data parallelism, {tensor} x {data}."
    return Wrong(detail, tuple(values(plan, *names)), f"{_ROLLOUT}expert_parallel_size={tensor * data}")


def _easyr1_offload(plan: RunPlan) -> Wrong | None:
    offload = on(plan, "worker.actor.fsdp.enable_cpu_offload")
    names = ("batch.mini", "group.size", "devices.train", "batch.micro")
    mini, group, devices, micro = (plan.whole(name) for name in names)
    if offload is None or mini is None or group is None or not devices or micro is None:
        return None
    each = mini * group // max(1, devices // (plan.whole("train.sequence_parallel") or 1))
    if each == micro:
        return None
    detail = (
        f"FSDP's CPU offload takes no accumulation: {each} sequences a device in micro-batches of {micro}."
    )
    return Wrong(detail, (offload, *values(plan, *names)), "worker.actor.fsdp.enable_cpu_offload=false")


def _openrlhf_oversampling(plan: RunPlan) -> Wrong | None:
    more, size = (
        item(plan, "rollout.vllm_generate_batch_size", "vllm_generate_batch_size"),
        plan.whole("batch.prompts"),
    )
    if more is None or not isinstance(more.data, int) or size is None or more.data <= size:
        return None
    if plan.get("rollout.async") is not False:
        return None
    detail = f"{more.key} {more.data} is more than the {size} prompts of a rollout, which needs an asynchronous run."
    return Wrong(detail, (more, *values(plan, "batch.prompts", "rollout.async")), "Add --train.async_enable.")


def _openrlhf_filtering(plan: RunPlan) -> Wrong | None:
    filters = on(plan, "algo.dynamic_filtering_enable", "dynamic_filtering")
    if filters is None:
        return None
    if plan.whole("group.size") == 1:
        detail = "Dynamic filtering compares completions of a prompt, and there is one."
        return Wrong(detail, (filters, *values(plan, "group.size")), "Take 2 or more samples per prompt.")
    if missing(plan, "reward.remote_url", "remote_rm_url") and missing(plan, *_AGENT):
        return Wrong(
            "Dynamic filtering needs a reward function or an agent.", (filters,), "Add --reward.remote_url."
        )
    return None


_AGENT = ("train.agent_func_path", "agent_func_path")


def _openrlhf_evaluation(plan: RunPlan) -> Wrong | None:
    data = on(plan, "eval.dataset", "eval_dataset")
    if data is None or not missing(plan, "reward.remote_url", "remote_rm_url") or not missing(plan, *_AGENT):
        return None
    return Wrong(
        "An evaluation data set needs a reward function or an agent.", (data,), "Add --reward.remote_url."
    )


def _openrlhf_packing(plan: RunPlan) -> Wrong | None:
    packs, engines = (
        on(plan, "ds.packing_samples", "packing_samples"),
        item(plan, "vllm.num_engines", "vllm_num_engines"),
    )
    if packs is None or engines is None or not engines.known or engines.data not in (0, None):
        return None
    return Wrong(
        "Packed samples need vLLM, and there is no engine.", (packs, engines), "Take one engine or more."
    )


def _openrlhf_queue(plan: RunPlan) -> Wrong | None:
    depth = plan.whole("rollout.depth")
    if depth is None or depth > 0 or plan.get("rollout.async") is not True:
        return None
    return Wrong(
        f"The queue of rollouts is to hold {depth}; OpenRLHF refuses fewer than 1.",
        tuple(values(plan, "rollout.depth")),
        "Make it 1 or more.",
    )


def _openrlhf_reference(plan: RunPlan) -> Wrong | None:
    """Actor and reference model on the same devices have to be as many."""
    together = on(
        plan, "train.colocate_actor_ref", "colocate_actor_ref", "train.colocate_all", "colocate_all_models"
    )
    weight = item(plan, "algo.kl.init_coef", "init_kl_coef")
    # The default of the weight is above nought in all releases, and that of both models is one node of 8.
    if together is None or (weight is not None and (not weight.known or weight.data in (0, 0.0, None))):
        return None
    nodes, each = plan.values.get("devices.nodes"), plan.values.get("devices.per_node")
    theirs = (
        item(plan, "ref.num_nodes", "ref_num_nodes"),
        item(plan, "ref.num_gpus_per_node", "ref_num_gpus_per_node"),
    )
    if nodes is None or each is None or not nodes.known or not each.known or plan.settings.open:
        return None
    if any(value is not None and not value.known for value in theirs):
        return None
    sizes = tuple(
        default if value is None else value.data for value, default in zip(theirs, (1, 8), strict=True)
    )
    if sizes == (nodes.data, each.data):
        return None
    detail = (
        f"Actor and reference model share devices: {nodes.data} x {each.data} for the actor and "
        f"{sizes[0]} x {sizes[1]} for the reference model have to be the same."
    )
    told = tuple(value for value in (nodes, each, *theirs, together) if value is not None)
    return Wrong(detail, told, f"--ref.num_nodes {nodes.data} --ref.num_gpus_per_node {each.data}")


def _listed(value: Value) -> list[object]:
    if isinstance(value.data, list):
        return value.data
    words: list[object] = [] if value.data is None else list(str(value.data).split())
    return words


REFUSALS = (
    Refusal("trl", ">=1.9", _trl_batch_finder),
    Refusal("trl", ">=0.28", _trl_hub_completions),
    Refusal("trl", ">=0.28", _trl_reference),
    Refusal("ms-swift", ">=3.3", _swift_overlong),
    Refusal("ms-swift", ">=3.7", _swift_cached),
    Refusal("ms-swift", ">=3.5", _swift_no_reward),
    Refusal("ms-swift", ">=3.2", _swift_weights),
    Refusal("ms-swift", ">=4.4", _swift_teachers),
    Refusal("ms-swift", ">=4.2", _swift_both_sizes),
    Refusal("ms-swift", ">=3.5", _swift_liger("delta", (None,))),
    Refusal("ms-swift", ">=3.5.3", _swift_liger("sequence_parallel_size", (None, 0, 1))),
    Refusal("ms-swift", ">=3.6", _swift_liger("padding_free", (None, False))),
    Refusal("ms-swift", ">=3.7", _swift_liger("log_entropy", (None, False))),
    Refusal("verl", ">=0.3", _verl_micro_batch("actor", "ppo_micro_batch_size")),
    Refusal("verl", ">=0.3", _verl_micro_batch("rollout", "log_prob_micro_batch_size")),
    Refusal("verl", ">=0.3", _verl_micro_batch("ref", "log_prob_micro_batch_size")),
    Refusal("verl", ">=0.2", _verl_padding),
    Refusal("verl", ">=0.3", _verl_validation),
    Refusal("verl", ">=0.4", _verl_aggregation),
    Refusal("verl", ">=0.6", _verl_experts),
    Refusal("easyr1", "", _easyr1_offload),
    Refusal("openrlhf", ">=0.10", _openrlhf_oversampling),
    Refusal("openrlhf", ">=0.8.1", _openrlhf_filtering),
    Refusal("openrlhf", ">=0.11", _openrlhf_evaluation),
    Refusal("openrlhf", ">=0.4.4", _openrlhf_packing),
    Refusal("openrlhf", ">=0.9.1", _openrlhf_queue),
    Refusal("openrlhf", ">=0.3.6", _openrlhf_reference),
)
