"""Rule about groups (CFG101): the completions of a generation in TRL or ms-swift are a multiple of the group size.

If ms-swift's number of processes is unknown, 1, 2, 4 and 8 are tried, and a problem is a warning. A script with its own
trainer is skipped if its release may accept any size.
"""

import math
from collections.abc import Iterator

from diagnostics.findings import Severity
from diagnostics.fixes import count_of
from diagnostics.lint import option_index
from diagnostics.lint.rules.registry import Problem, rule
from diagnostics.lint.run_plan import RunPlan
from diagnostics.lint.values import Value
from diagnostics.versions import in_range

CHECK = "batches and groups"
_GROUPING = ("trl", "ms-swift")


@rule("CFG101", check=CHECK, frameworks=_GROUPING, role="train")
def generation_holds_whole_groups(plan: RunPlan) -> Iterator[Problem]:
    """One generation is a multiple of num_generations, because TRL (from 0.15 on) and ms-swift refuse another size."""
    group = plan.whole_number("group.size")
    per_device = plan.values["batch.per_device"].data if "batch.per_device" in plan.values else None
    if group is None or group < 2:
        return
    multiple = isinstance(per_device, int) and per_device % group == 0
    if "batch.generation" not in plan.values and (
        multiple or (_generation_size(plan, 1)[0] or 1) % group == 0
    ):
        return  # for any number of processes
    total, names, applies = _generation_size(plan)
    # Without the number of processes, 1, 2, 4 and 8 are tried, unless a server takes some of the GPUs.
    alone = plan.framework == "ms-swift" and plan.get("rollout.mode") != "server"
    unknown = alone and total is None and "devices.train" not in plan.values
    if unknown:
        total, names, applies = _generation_size(plan, 1)
    settings = plan.settings
    own_script = bool(settings.target) and (not settings.framework_parser or settings.target.endswith(".py"))
    whole = total is None or total * (8 if unknown else 1) % group == 0
    if total is None or whole or (applies is None and own_script):
        return  # a script's own trainer may form its groups in another way
    factors = plan.evidence(*names)
    product = " x ".join(str(value.data) for value in factors)
    formula = f" ({product})" if len(factors) > 1 else ""
    processes = (" per process", " with 1, 2, 4 or 8 processes") if unknown else ("", "")
    yield Problem(
        f"One generation makes {count_of(total, 'completion')}{formula}{processes[0]}, not a multiple of "
        f"num_generations {group}{processes[1]}.",
        [*plan.evidence("group.size"), *factors],
        fix=f"{_fitting_size(plan, factors, total, group)}{_fitting_groups(plan, total, group)}.",
        applies=applies,
        severity=Severity.WARNING if unknown else Severity.ERROR,
    )


def _generation_size(
    plan: RunPlan, assumed_processes: int | None = None
) -> tuple[int | None, tuple[str, ...], bool | None]:
    """Return the size of a generation, and whether the release checks it.

    Returns:
        The number of completions (None if unknown), the names of its factors in the plan, and True, False or None
        (unknown) for the check.
    """
    explicit = plan.whole_number("batch.generation")
    if explicit is not None:
        return explicit, ("batch.generation",), True
    per_device = plan.whole_number("batch.per_device")
    processes = assumed_processes or plan.whole_number("devices.train")
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
    """Return whether the release needs whole groups (TRL from 0.15 on); None if release and options leave it open.

    Copies of the trainer of TRL 0.14, which makes one group per prompt, are still in use. Their scripts look the same.
    """
    if plan.framework != "trl":
        return True
    known = plan.versions.within("trl", ">=0.15")
    _partial, possible = option_index.releases_with_all("trl", plan.options)
    return True if known is None and possible and in_range(possible[0], ">=0.15") else known


def _fitting_size(plan: RunPlan, factors: list[Value], total: int, group: int) -> str:
    """Return the fix that changes a generation's last factor so that it holds whole groups."""
    changed = [value for value in factors if value not in plan.evidence("devices.train")][-1]
    if "batch.generation" in plan.values:
        return f"Set {changed.key} to a multiple of {_required_multiple(plan, group)}"
    unit = group // math.gcd(group, total // changed.data)
    return f"Set {changed.key} to {-(-changed.data // unit) * unit}"


def _required_multiple(plan: RunPlan, group: int) -> str:
    """Return the number that must divide an explicit size of a generation, or a text that describes it."""
    sizes = [value.data for value in plan.evidence("batch.per_device", "devices.train")]
    positive = [size for size in sizes if isinstance(size, int) and size > 0]
    if len(positive) < 2:
        return f"{group} and of per_device_train_batch_size x processes"
    return str(math.lcm(group, math.prod(positive)))


def _fitting_groups(plan: RunPlan, total: int, group: int) -> str:
    """Return an alternative fix with up to three group sizes that divide the total; empty if there are none."""
    each = plan.evidence("batch.generation", "batch.per_device")[1:]
    if each and isinstance(each[0].data, int) and total % max(1, each[0].data):
        return ""  # a generation that is no multiple of a batch has to change, whatever the group
    fitting = [size for size in range(2, min(total, 4096) + 1) if total % size == 0]
    nearest = sorted(sorted(fitting, key=lambda size: abs(size - group))[:3])
    return f", or num_generations to {' or '.join(map(str, nearest))}" if nearest else ""
