"""Rules about batches and groups: sizes that must be multiples of other sizes, by each framework's own checks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from diagnostics.lint.rules.registry import Problem, rule
from diagnostics.lint.run_plan import RunPlan

CHECK = "batches and groups"
# verl's programs that call validate_config; verl's experiments have other batches.
VERL_VALIDATED = {"", "verl.trainer.main_ppo", "recipe.dapo.main_dapo"}
_GROUPING = ("trl", "ms-swift")
# Options that TRL added after 0.14, whose trainer made one group per prompt. Copies of that trainer are still
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
    group = plan.whole_number("group.size")
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
    formula = f" ({product})" if len(factors) > 1 else ""
    yield Problem(
        f"One generation makes {total} completions{formula}, not a multiple of num_generations {group}.",
        [*plan.evidence("group.size"), *factors],
        fix=f"Make it a multiple of {_required_multiple(plan, group)}{_fitting_groups(total, group)}.",
        applies=applies,
    )


def _is_multiple(number: object, group: int) -> bool:
    return isinstance(number, int) and number % group == 0


def _generation_size(plan: RunPlan) -> tuple[int | None, tuple[str, ...], bool | None]:
    """Return the number of completions of a generation, the names of its factors, and whether the release checks it."""
    explicit = plan.whole_number("batch.generation")
    if explicit is not None:
        return explicit, ("batch.generation",), True
    per_device, processes = plan.whole_number("batch.per_device"), plan.whole_number("devices.train")
    steps_name = (
        "batch.steps_per_generation" if plan.get("batch.steps_per_generation") else "batch.accumulation"
    )
    steps = plan.whole_number(steps_name)
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
    certain = counts_steps or one_pass % (plan.whole_number("group.size") or 1) != 0
    return one_pass * steps, (*names, steps_name), True if certain else None


def _needs_whole_groups(plan: RunPlan) -> bool | None:
    """Return whether the release needs whole groups (TRL from 0.15 on); None if the release is unknown."""
    if plan.framework != "trl":
        return True
    known = plan.versions.within("trl", ">=0.15")
    return True if known is None and _SINCE_TRL_0_15 & set(plan.options) else known


def _required_multiple(plan: RunPlan, group: int) -> str:
    """Return the number that a generation must be a multiple of."""
    if "batch.generation" not in plan.values:
        return str(group)
    sizes = [value.data for value in plan.evidence("batch.per_device", "devices.train")]
    positive = [size for size in sizes if isinstance(size, int) and size > 0]
    if len(positive) < 2:
        return f"{group} and of per_device_train_batch_size x processes"
    return str(math.lcm(group, math.prod(positive)))


def _fitting_groups(total: int, group: int) -> str:
    """Return an alternative fix with the group sizes of 2 or more that divide the total; empty if there are none."""
    fitting = [size for size in range(2, min(total, 4096) + 1) if total % size == 0]
    nearest = sorted(sorted(fitting, key=lambda size: abs(size - group))[:3])
    return f", or use num_generations {' or '.join(map(str, nearest))}" if nearest else ""


@rule("CFG101", check=CHECK, frameworks=_GROUPING)
def evaluation_holds_whole_groups(plan: RunPlan) -> Iterator[Problem]:
    """TRL and ms-swift refuse an evaluation batch that is not a multiple of num_generations."""
    if plan.get("train.evaluates") is not True:
        return
    name = "group.eval_size" if plan.whole_number("group.eval_size") else "group.size"
    group, per_device = plan.whole_number(name), plan.whole_number("batch.eval_per_device")
    if per_device is None or not group or per_device % group == 0:
        return
    processes = plan.whole_number("devices.train")
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


@rule("CFG102", check=CHECK, frameworks=("verl",))
def verl_batches_divide(plan: RunPlan) -> Iterator[Problem]:
    """In verl `validate_config` and `ActorConfig.validate` check train batch, mini-batch and devices."""
    if plan.get("batch.dynamic") is not False or plan.settings.target not in VERL_VALIDATED:
        return
    prompts, mini = plan.whole_number("batch.prompts"), plan.whole_number("batch.mini")
    applies = _verl_validates(plan)
    if prompts and mini and prompts < mini:
        yield Problem(
            f"The train batch of {prompts} prompts is smaller than one mini-batch of {mini}.",
            plan.evidence("batch.prompts", "batch.mini", "batch.dynamic"),
            fix=f"Set actor_rollout_ref.actor.ppo_mini_batch_size to {prompts} or less.",
            applies=applies,
        )
    devices, group = plan.whole_number("devices.train"), plan.whole_number("group.size")
    if prompts and group and devices and (prompts * group) % devices and not _uses_megatron(plan):
        yield Problem(
            f"{prompts * group} completions ({prompts} prompts x {group}) are not a multiple of the {devices} devices.",
            plan.evidence("batch.prompts", "group.size", "devices.train"),
            fix="Make data.train_batch_size x rollout.n a multiple of the number of devices.",
            applies=applies,
        )


def _verl_validates(plan: RunPlan) -> bool | None:
    """Return whether the release has these checks (verl from 0.3 on); None if the release is not known."""
    known = plan.versions.within("verl", ">=0.3")
    micro = "actor_rollout_ref.actor.ppo_micro_batch_size"
    older = micro in plan.options and f"{micro}_per_gpu" not in plan.options
    return known if known is not None or older else True


def _uses_megatron(plan: RunPlan) -> bool:
    strategy, config = plan.option("actor_rollout_ref.actor.strategy"), plan.option("--config-name")
    if strategy is not None and strategy.data != "fsdp":
        return True
    by_name = config is not None and "megatron" in str(config.data)
    return by_name or any(".megatron." in key for key in plan.options)


@rule("CFG111", check=CHECK, frameworks=("verl",), role="train", releases=">=0.3")
def verl_micro_batch_is_set(plan: RunPlan) -> Iterator[Problem]:
    """In verl actor, rollout and reference model require a micro-batch size unless batches are cut by tokens."""
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
        unused = section == "ref" and plan.enabled("actor_rollout_ref.actor.use_kl_loss") is None
        if all(both):
            message, values, fix = f"{old} and {new} are both set.", both, f"Leave {old} out."
        elif not shipped or not plan.disabled(old) or not plan.disabled(new) or unused:
            continue
        else:
            command = plan.values["framework"].with_key(f"python3 -m {plan.settings.target}")
            message, values = f"{new} is not set, and has no default.", (command, dynamic)
            fix = f"Set {new}=8, or actor_rollout_ref.actor.use_dynamic_bsz=True."
        yield Problem(message, values, fix=fix, fix_is_complete=True)
