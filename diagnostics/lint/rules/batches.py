"""Rules about batches and groups: sizes that must be multiples of other sizes, by each framework's own checks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from diagnostics.lint import option_index
from diagnostics.lint.rules.registry import Problem, rule
from diagnostics.lint.run_plan import RunPlan
from diagnostics.versions import in_range

CHECK = "batches and groups"
# verl's programs that call validate_config; verl's experiments have other batches.
VERL_VALIDATED = {"", "verl.trainer.main_ppo", "recipe.dapo.main_dapo"}
_GROUPING = ("trl", "ms-swift")


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
    """Return whether the release needs whole groups (TRL from 0.15 on); None if neither it nor the options show that.

    Copies of the trainer of TRL 0.14, which makes one group per prompt, are still in use. Their scripts look the same.
    """
    if plan.framework != "trl":
        return True
    known = plan.versions.within("trl", ">=0.15")
    _partial, possible = option_index.releases_with_all("trl", plan.options)
    return True if known is None and possible and in_range(possible[0], ">=0.15") else known


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
