"""Batches and groups: what has to divide what, by each framework's own arithmetic."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from diagnostics.lint.rules.registry import Problem, rule
from diagnostics.output.findings import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diagnostics.lint.run_plan import RunPlan

CHECK = "batches and groups"
# verl's programs that call validate_config; its experiments have other batches.
VERL_VALIDATED = {"", "verl.trainer.main_ppo", "recipe.dapo.main_dapo"}
_GROUPING = ("trl", "ms-swift")
_GROUPED_ESTIMATORS = {"grpo", "rloo", "dr_grpo", "group_norm", "reinforce_baseline", "grpo_passk"}
# Options that TRL got after 0.14, whose trainer gave each prompt a group of its own. Copies of that trainer are still
# in use, under scripts that look the same.
_SINCE_TRL_0_15 = {
    "vllm_mode", "vllm_server_host", "vllm_server_port", "vllm_server_base_url", "vllm_tensor_parallel_size",
    "steps_per_generation", "generation_batch_size", "loss_type", "scale_rewards", "mask_truncated_completions",
    "num_iterations", "epsilon", "epsilon_high", "top_p", "top_k", "min_p", "repetition_penalty",
    "num_generations_eval", "vllm_importance_sampling_correction", "vllm_enable_sleep_mode", "num_completions_to_print",
}  # fmt: skip


@rule("CFG101", check=CHECK, frameworks=_GROUPING, role="train")
def generation_holds_whole_groups(plan: RunPlan) -> Iterator[Problem]:
    """TRL and ms-swift refuse a generation that is not a multiple of num_generations."""
    group = plan.whole("group.size")
    per_device = plan.values.get("batch.per_device")
    if group is None or group < 2:
        return
    if "batch.generation" not in plan.values and per_device and _is_multiple(per_device.data, group):
        return  # for any number of processes
    total, names, applies = _generation_size(plan)
    if total is None or total % group == 0:
        return
    factors = plan.evidence(*names)
    product = " x ".join(str(value.data) for value in factors)
    shown = f" ({product})" if len(factors) > 1 else ""
    yield Problem(
        f"One generation makes {total} completions{shown}, not a multiple of num_generations {group}.",
        [*plan.evidence("group.size"), *factors],
        fix=f"Make it a multiple of {_required_multiple(plan, group)}{_fitting_groups(total, group)}.",
        applies=applies,
    )


def _is_multiple(number: object, group: int) -> bool:
    return isinstance(number, int) and number % group == 0


def _generation_size(plan: RunPlan) -> tuple[int | None, tuple[str, ...], bool | None]:
    """Return the completions of one generation, the values it follows from, and whether the release counts so."""
    explicit = plan.whole("batch.generation")
    if explicit is not None:
        return explicit, ("batch.generation",), True
    per_device, processes = plan.whole("batch.per_device"), plan.whole("devices.train")
    steps_name = "batch.steps_per_generation" if plan.get("batch.steps_per_generation") else "batch.accumulation"
    steps = plan.whole(steps_name)
    if per_device is None or processes is None:
        return None, (), True
    one_pass, names = per_device * processes, ("batch.per_device", "devices.train")
    needs_groups = _needs_whole_groups(plan)
    if not needs_groups:
        return one_pass, names, needs_groups
    counts_steps = plan.versions.within(plan.framework, ">=0.17" if plan.framework == "trl" else ">=3.4.0")
    if counts_steps is False:
        return one_pass, names, True
    if steps is None:
        return None, (), True
    certain = counts_steps or one_pass % (plan.whole("group.size") or 1) != 0
    return one_pass * steps, (*names, steps_name), True if certain else None


def _needs_whole_groups(plan: RunPlan) -> bool | None:
    """Tell whether the release needs whole groups: TRL from 0.15 on; None if nothing shows which it is."""
    if plan.framework != "trl":
        return True
    known = plan.versions.within("trl", ">=0.15")
    return True if known is None and _SINCE_TRL_0_15 & set(plan.options) else known


def _required_multiple(plan: RunPlan, group: int) -> str:
    """Return what a generation has to be a multiple of; one that is set has to hold whole passes, too."""
    if "batch.generation" not in plan.values:
        return str(group)
    sizes = [value.data for value in plan.evidence("batch.per_device", "devices.train")]
    positive = [size for size in sizes if isinstance(size, int) and size > 0]
    if len(positive) < 2:
        return f"{group} and of per_device_train_batch_size x processes"
    return str(math.lcm(group, math.prod(positive)))


def _fitting_groups(total: int, group: int) -> str:
    """Return the other fix: a group of 2 or more that fits."""
    fitting = [size for size in range(2, min(total, 4096) + 1) if total % size == 0]
    nearest = sorted(sorted(fitting, key=lambda size: abs(size - group))[:3])
    return f", or use num_generations {' or '.join(map(str, nearest))}" if nearest else ""


@rule("CFG101", check=CHECK, frameworks=_GROUPING)
def evaluation_holds_whole_groups(plan: RunPlan) -> Iterator[Problem]:
    """TRL and ms-swift refuse an evaluation batch that is not a multiple of num_generations."""
    if plan.get("train.evaluates") is not True:
        return
    name = "group.eval_size" if plan.whole("group.eval_size") else "group.size"
    group, per_device = plan.whole(name), plan.whole("batch.eval_per_device")
    if per_device is None or not group or per_device % group == 0:
        return
    processes = plan.whole("devices.train")
    if processes is None or (per_device * processes) % group == 0:
        return
    releases = ">=0.16" if plan.framework == "trl" else ">=3.2"
    yield Problem(
        f"Evaluation makes {per_device * processes} completions at once ({per_device} x {processes}), not a multiple "
        f"of num_generations {group}.",
        plan.evidence("batch.eval_per_device", "devices.train", name),
        fix=f"Make per_device_eval_batch_size x processes a multiple of {group}.",
        applies=plan.versions.within(plan.framework, releases),
    )


@rule("CFG101", check=CHECK, frameworks=_GROUPING)
def generation_holds_whole_steps(plan: RunPlan) -> Iterator[Problem]:
    """TRL and ms-swift refuse a generation_batch_size that is not a multiple of one forward pass on all devices."""
    size = plan.whole("batch.generation")
    both = plan.framework == "trl" and plan.option("steps_per_generation") is not None
    if size is None or both:  # both together are a conflict of their own
        return
    per_device = plan.whole("batch.per_device")
    processes = plan.whole("devices.train") if per_device else None
    if not per_device or not processes or size % (per_device * processes) == 0:
        return
    yield Problem(
        f"generation_batch_size {size} is not a multiple of the {per_device * processes} completions ({per_device} x "
        f"{processes}) that all devices take in one pass.",
        plan.evidence("batch.generation", "batch.per_device", "devices.train"),
        fix=f"Make it a multiple of {per_device * processes}.",
        # Up to 0.19 TRL's own check had its brackets wrong and let some through.
        applies=plan.versions.within("trl", ">=0.20") if plan.framework == "trl" else True,
    )


@rule("CFG111", check=CHECK, frameworks=("ms-swift",), role="train", releases=">=4.2")
def generation_sizes_agree(plan: RunPlan) -> Iterator[Problem]:
    """ms-swift refuses a generation_batch_size that is not what steps_per_generation makes it."""
    names = ("batch.generation", "batch.steps_per_generation", "batch.per_device", "devices.train")
    size, steps, per_device, processes = (plan.whole(name) for name in names)
    if size is None or steps is None or per_device is None or processes is None:
        return
    expected = per_device * processes * steps
    if size != expected:
        yield Problem(
            f"generation_batch_size is {size}, but steps_per_generation {steps} makes it {expected} ({per_device} x "
            f"{processes} x {steps}).",
            plan.evidence(*names), fix="Leave one of them out.", fix_is_complete=True,
        )  # fmt: skip


@rule("CFG110", check=CHECK, role="train")
def group_has_several_completions(plan: RunPlan) -> Iterator[Problem]:
    """A group of one completion has nothing to compare with: it is refused, or every advantage is 0."""
    if plan.whole("group.size") != 1:
        return
    estimator = plan.get("train.estimator")
    # With a teacher the signal does not come from the group.
    teacher = plan.option("teacher_model", "teacher_model_server") is not None
    teacher = teacher or any(key.startswith("distillation.") for key in plan.options)
    if teacher or (plan.framework not in _GROUPING and estimator not in _GROUPED_ESTIMATORS):
        return
    consequence, severity = "it is refused before training starts.", Severity.ERROR
    if plan.framework == "verl" and estimator == "grpo_passk":
        consequence = "verl stops at the first advantages: Pass@k needs at least 2."
    elif plan.framework == "verl":
        consequence, severity = "verl accepts it, and every advantage is the bare reward.", Severity.WARNING
    elif plan.framework == "openrlhf" and estimator == "dr_grpo":
        consequence = "OpenRLHF 0.11.2 refuses it; in 0.10.2 every advantage is 0."
    yield Problem(
        f"The group has 1 completion: {consequence}",
        plan.evidence("group.size", "train.estimator"),
        fix=f"Set {plan.values['group.size'].key} to 2 or more; 8 is usual.",
        severity=severity,
    )


@rule("CFG102", check=CHECK, frameworks=("verl",))
def verl_batches_divide(plan: RunPlan) -> Iterator[Problem]:
    """verl's `validate_config` and `ActorConfig.validate` check train batch, mini-batch and devices."""
    if plan.get("batch.dynamic") is not False or plan.settings.target not in VERL_VALIDATED:
        return
    prompts, mini = plan.whole("batch.prompts"), plan.whole("batch.mini")
    applies = _verl_validates(plan)
    if prompts and mini and prompts < mini:
        yield Problem(
            f"The train batch of {prompts} prompts is smaller than one mini-batch of {mini}.",
            plan.evidence("batch.prompts", "batch.mini", "batch.dynamic"),
            fix=f"Set actor_rollout_ref.actor.ppo_mini_batch_size to {prompts} or less.",
            applies=applies,
        )
    devices, group = plan.whole("devices.train"), plan.whole("group.size")
    if prompts and group and devices and (prompts * group) % devices and not _uses_megatron(plan):
        yield Problem(
            f"{prompts * group} completions ({prompts} prompts x {group}) are not a multiple of the {devices} devices.",
            plan.evidence("batch.prompts", "group.size", "devices.train"),
            fix="Make data.train_batch_size x rollout.n a multiple of the number of devices.",
            applies=applies,
        )


def _verl_validates(plan: RunPlan) -> bool | None:
    """Tell whether the release has these checks: from 0.3 on; the micro-batch's old name may be an earlier one."""
    known = plan.versions.within("verl", ">=0.3")
    micro = "actor_rollout_ref.actor.ppo_micro_batch_size"
    older = micro in plan.options and f"{micro}_per_gpu" not in plan.options
    return known if known is not None or older else True


def _uses_megatron(plan: RunPlan) -> bool:
    strategy, config = plan.option("actor_rollout_ref.actor.strategy"), plan.option("--config-name")
    if strategy is not None and strategy.data != "fsdp":
        return True
    named = config is not None and "megatron" in str(config.data)
    return named or any(".megatron." in key for key in plan.options)


@rule("CFG102", check=CHECK, frameworks=("easyr1",))
def easyr1_batches_divide(plan: RunPlan) -> Iterator[Problem]:
    """EasyR1 checks its batches in ray_trainer.py and fsdp_workers.py."""
    prompts, mini, group = (plan.whole(name) for name in ("batch.prompts", "batch.mini", "group.size"))
    experience = plan.whole("batch.experience_micro")
    if prompts and mini and prompts % mini:
        yield Problem(
            f"data.rollout_batch_size {prompts} is not a multiple of worker.actor.global_batch_size {mini}.",
            plan.evidence("batch.prompts", "batch.mini"),
            fix=f"Make data.rollout_batch_size a multiple of {mini}.",
        )
    if prompts and group and experience and (prompts * group) % experience:
        yield Problem(
            f"{prompts * group} completions ({prompts} prompts x {group}) are not a multiple of "
            f"micro_batch_size_per_device_for_experience {experience}.",
            plan.evidence("batch.prompts", "group.size", "batch.experience_micro"),
            fix=f"Make the product a multiple of {experience}.",
        )
    devices, micro = plan.whole("devices.train"), plan.whole("batch.micro")
    if not mini or not devices or not micro or not group:
        return
    ranks = devices // (plan.whole("train.sequence_parallel") or 1)
    per_rank = (mini * group) // ranks if ranks else 0
    if per_rank and per_rank % micro == 0:
        return
    yield Problem(
        f"Each of {ranks} data-parallel ranks gets {per_rank} sequences (global_batch_size {mini} x {group} "
        f"completions), not a multiple of micro_batch_size_per_device_for_update {micro}.",
        plan.evidence("batch.mini", "group.size", "devices.train", "train.sequence_parallel", "batch.micro"),
        fix="Make global_batch_size x n a multiple of ranks x micro-batch."
        if ranks
        else f"Lower the sequence parallelism to {devices} or less.",
    )


@rule("CFG111", check=CHECK, frameworks=("easyr1",), role="train")
def easyr1_offload_needs_one_micro_batch(plan: RunPlan) -> Iterator[Problem]:
    """EasyR1 refuses FSDP's CPU offload with gradient accumulation."""
    offload = plan.enabled("worker.actor.fsdp.enable_cpu_offload")
    names = ("batch.mini", "group.size", "devices.train", "batch.micro")
    mini, group, devices, micro = (plan.whole(name) for name in names)
    if offload is None or mini is None or group is None or not devices or micro is None:
        return
    per_rank = mini * group // max(1, devices // (plan.whole("train.sequence_parallel") or 1))
    if per_rank != micro:
        yield Problem(
            f"FSDP's CPU offload allows no accumulation: {per_rank} sequences per device in micro-batches of {micro}.",
            (offload, *plan.evidence(*names)), fix="worker.actor.fsdp.enable_cpu_offload=false", fix_is_complete=True,
        )  # fmt: skip


@rule("CFG102", check=CHECK, frameworks=("openrlhf",))
def openrlhf_actors_get_micro_batches(plan: RunPlan) -> Iterator[Problem]:
    """OpenRLHF checks that every actor gets a micro-batch of a rollout."""
    names = ("batch.prompts", "group.size", "batch.experience_micro", "devices.train")
    prompts, group, micro, devices = (plan.whole(name) for name in names)
    if not prompts or not group or not micro or not devices:
        return
    for keys in (("ds.ring_attn_size", "ring_attn_size"), ("ds.tensor_parallel_size", "ds_tensor_parallel_size")):
        value = plan.option(*keys)
        shared = 1 if value is None else value.data
        if not isinstance(shared, int) or shared < 1:
            return
        devices //= shared
    if prompts * group // micro < devices:
        yield Problem(
            f"{prompts * group} completions ({prompts} prompts x {group}) in micro-batches of {micro} are fewer than "
            f"the {devices} actors.",
            plan.evidence(*names),
            fix=f"Make prompts x completions / micro-batch {devices} or more, or use fewer actors.",
        )


@rule("CFG102", check=CHECK, frameworks=_GROUPING)
def deepspeed_sizes_agree(plan: RunPlan) -> Iterator[Problem]:
    """transformers refuses sizes in DeepSpeed's config that are not those of the arguments."""
    pairs = {"train_micro_batch_size_per_gpu": "batch.per_device", "gradient_accumulation_steps": "batch.accumulation"}
    for key, name in pairs.items():
        theirs, ours = plan.option(f"deepspeed.{key}"), plan.whole(name)
        if theirs is None or not isinstance(theirs.data, int) or ours is None or theirs.data == ours:
            continue
        yield Problem(
            f"{key} is {theirs.data} in DeepSpeed's config and {ours} in the run's arguments.",
            [theirs, *plan.evidence(name)], fix='Write "auto" in DeepSpeed\'s config.',
        )  # fmt: skip


@rule("CFG111", check=CHECK, frameworks=("verl",), role="train", releases=">=0.3")
def verl_micro_batch_is_set(plan: RunPlan) -> Iterator[Problem]:
    """verl requires a micro-batch size for actor, rollout and reference model unless batches are cut by tokens."""
    names = (
        ("actor", "ppo_micro_batch_size"),
        ("rollout", "log_prob_micro_batch_size"),
        ("ref", "log_prob_micro_batch_size"),
    )
    dynamic = plan.values.get("batch.dynamic")
    if dynamic is None or dynamic.data is not False or plan.settings.target not in VERL_VALIDATED:
        return
    shipped = plan.settings.target == "verl.trainer.main_ppo"
    shipped = shipped and plan.option("--config-name", "--config-path") is None
    for section, name in names:
        old, new = f"actor_rollout_ref.{section}.{name}", f"actor_rollout_ref.{section}.{name}_per_gpu"
        both = plan.enabled(old), plan.enabled(new)
        if all(both):
            message, values, fix = f"{old} and {new} are both set.", both, f"Leave {old} out."
        elif not shipped or not plan.disabled(old) or not plan.disabled(new):
            continue
        elif section == "ref" and plan.enabled("actor_rollout_ref.actor.use_kl_loss") is None:
            continue
        else:
            command = plan.values["framework"].with_key(f"python3 -m {plan.settings.target}")
            message, values = f"{new} is not set, and has no default.", (command, dynamic)
            fix = f"Set {new}=8, or actor_rollout_ref.actor.use_dynamic_bsz=True."
        yield Problem(message, values, fix=fix, fix_is_complete=True)


@rule("CFG111", check=CHECK, frameworks=("trl", "ms-swift"), role="train")
def reward_weights_match_functions(plan: RunPlan) -> Iterator[Problem]:
    """TRL and ms-swift need one weight per reward function."""
    weights, functions = plan.option("reward_weights"), plan.option("reward_funcs")
    if weights is None or functions is None or not weights.known or not functions.known:
        return
    if plan.option("reward_model", "use_gym_env") is not None or plan.settings.has_unread_options:
        return
    numbers, names = as_list(weights.data), as_list(functions.data)
    if weights.data is not None and len(numbers) != len(names):
        yield Problem(
            f"{len(numbers)} reward_weights for {len(names)} reward_funcs.", (weights, functions),
            fix="Give each reward function one weight.", fix_is_complete=True,
            applies=plan.versions.within(plan.framework, ">=0.15" if plan.framework == "trl" else ">=3.2"),
        )  # fmt: skip


def as_list(data: object) -> list[object]:
    """Return the items of a list option, which a command line may give as one text."""
    if isinstance(data, list):
        return data
    return [] if data is None else list(str(data).split())


@rule("CFG111", check=CHECK, frameworks=("trl", "ms-swift"), role="train")
def best_model_steps_agree(plan: RunPlan) -> Iterator[Problem]:
    """transformers' load_best_model_at_end needs save_steps to be a multiple of eval_steps."""
    best = plan.enabled("load_best_model_at_end")
    save, evaluation = plan.option("save_steps"), plan.option("eval_steps")
    strategies = [plan.option(name) for name in ("eval_strategy", "save_strategy")]
    if best is None or save is None or evaluation is None:
        return
    if any(value is not None and value.data != "steps" for value in strategies) or strategies[0] is None:
        return
    if not isinstance(save.data, int) or not isinstance(evaluation.data, int) or evaluation.data < 1:
        return
    if save.data % evaluation.data:
        yield Problem(
            f"load_best_model_at_end needs save_steps {save.data} to be a multiple of eval_steps {evaluation.data}.",
            (save, evaluation, best), fix=f"Make save_steps a multiple of {evaluation.data}.", fix_is_complete=True,
        )  # fmt: skip
