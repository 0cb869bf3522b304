"""Batches and groups: what has to divide what, by each framework's own arithmetic."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from diagnostics.lint.rules.base import found, values
from diagnostics.lint.rules.registered import rule
from diagnostics.output.findings import Severity

if TYPE_CHECKING:
    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.versions import Versions
    from diagnostics.output.findings import Finding

# Programs of verl that call validate_config; its experiments have batches of their own kind.
_VALIDATED = {"", "verl.trainer.main_ppo", "recipe.dapo.main_dapo"}
_GROUPS = ("trl", "ms-swift")
# Options of TRL that came after 0.14, where a prompt had a whole group of its own and nothing had to divide. Trainers
# copied from that release are still in use, under scripts that look the same.
_SINCE_GROUPS = {
    "vllm_mode", "vllm_server_host", "vllm_server_port", "vllm_server_base_url", "vllm_tensor_parallel_size",
    "steps_per_generation", "generation_batch_size", "loss_type", "scale_rewards", "mask_truncated_completions",
    "num_iterations", "epsilon", "epsilon_high", "top_p", "top_k", "min_p", "repetition_penalty",
    "num_generations_eval", "vllm_importance_sampling_correction", "vllm_enable_sleep_mode", "num_completions_to_print",
}  # fmt: skip


@rule("CFG101", check="batches and groups")
def whole_groups(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG101: TRL and ms-swift refuse a generation that does not hold whole groups."""
    if plan.framework not in _GROUPS or plan.role != "train":
        return []
    group = plan.whole("group.size")
    if group is None or group < 2:
        return []
    per_device = plan.values.get("batch.per_device")
    if "batch.generation" not in plan.values and per_device and _divides(per_device.data, group):
        return []  # whatever the number of processes is
    total, names, gate = _generation(plan, versions)
    if total is None or total % group == 0:
        return []
    shown = " x ".join(f"{value.key} {value.data}" for value in values(plan, *names))
    return found(
        plan,
        "CFG101",
        Severity.ERROR,
        f"One generation makes {total} completions ({shown}), which is no multiple of the group of {group}.",
        values(plan, "group.size", *names),
        remedy=f"Make it a multiple of {_unit(plan, group)}{_near(total, group)}.",
        gate=gate,
    )


def _divides(number: object, group: int) -> bool:
    return isinstance(number, int) and number % group == 0


def _generation(plan: RunPlan, versions: Versions) -> tuple[int | None, tuple[str, ...], bool | None]:
    """How many completions one generation makes, from which values, and whether the release counts so."""
    given = plan.whole("batch.generation")
    if given is not None:
        return given, ("batch.generation",), True
    per_device, processes = plan.whole("batch.per_device"), plan.whole("devices.train")
    steps_name = (
        "batch.steps_per_generation" if plan.get("batch.steps_per_generation") else "batch.accumulation"
    )
    steps = plan.whole(steps_name)
    if per_device is None or processes is None:
        return None, (), True
    if not _groups_divide(plan, versions):
        return per_device * processes, ("batch.per_device", "devices.train"), _groups_divide(plan, versions)
    counts_steps = versions.within(plan.framework, ">=0.17" if plan.framework == "trl" else ">=3.4.0")
    with_steps = None if steps is None else per_device * processes * steps
    names = ("batch.per_device", "devices.train")
    if counts_steps is False:
        return per_device * processes, names, True
    if with_steps is None:
        return None, (), True
    group = plan.whole("group.size") or 1
    sure = counts_steps or (per_device * processes) % group != 0
    return with_steps, (*names, steps_name), True if sure else None


def _groups_divide(plan: RunPlan, versions: Versions) -> bool | None:
    """Tells whether the release asks for whole groups: TRL from 0.15 on; None where nothing shows which it is."""
    if plan.framework != "trl":
        return True
    known = versions.within("trl", ">=0.15")
    return True if known is None and _SINCE_GROUPS & set(plan.settings.items) else known


def _unit(plan: RunPlan, group: int) -> str:
    """What the size of a generation has to be a multiple of: one that is set has to hold whole passes, too."""
    if "batch.generation" not in plan.values:
        return str(group)
    # Looked up and not asked for: what was found is decided without them.
    asked = plan.evidence(("batch.per_device", "devices.train"))
    sizes = [value.data for value in asked if value.known and isinstance(value.data, int) and value.data > 0]
    if len(sizes) < 2:
        return f"{group} and of per_device_train_batch_size x processes"
    return str(math.lcm(group, math.prod(sizes)))


def _near(total: int, group: int) -> str:
    """The other way, a group that fits, where one of two or more does."""
    fine = [number for number in range(2, min(total, 4096) + 1) if total % number == 0]
    nearest = sorted(sorted(fine, key=lambda number: abs(number - group))[:3])
    return f", or take a group of {' or '.join(map(str, nearest))}" if nearest else ""


@rule("CFG101", check="batches and groups")
def evaluation_groups(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG101: the same of evaluation's batch."""
    if plan.framework not in _GROUPS or plan.get("train.evaluates") is not True:
        return []
    name = "group.eval_size" if plan.whole("group.eval_size") else "group.size"
    group, per_device = plan.whole(name), plan.whole("batch.eval_per_device")
    if per_device is None or not group or per_device % group == 0:
        return []
    processes = plan.whole("devices.train")
    if per_device is None or processes is None or not group or (per_device * processes) % group == 0:
        return []
    gate = (
        versions.within("trl", ">=0.16") if plan.framework == "trl" else versions.within("ms-swift", ">=3.2")
    )
    return found(
        plan,
        "CFG101",
        Severity.ERROR,
        f"Evaluation makes {per_device * processes} completions at once, no multiple of the group of {group}.",
        values(plan, "batch.eval_per_device", "devices.train", name),
        remedy=f"Make per_device_eval_batch_size x processes a multiple of {group}.",
        gate=gate,
    )


@rule("CFG101", "CFG111", check="batches and groups")
def whole_steps(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG101: a generation that does not hold whole steps, and both ways of saying its size."""
    if plan.framework not in _GROUPS or (given := plan.whole("batch.generation")) is None:
        return []
    if plan.framework == "trl" and plan.whole("batch.steps_per_generation") is not None:
        return found(
            plan,
            "CFG111",
            Severity.ERROR,
            "generation_batch_size and steps_per_generation are both set; TRL takes one of them.",
            values(plan, "batch.generation", "batch.steps_per_generation"),
            remedy="Leave one of them out.",
            gate=versions.within("trl", ">=0.18") is not False,
        )
    per_device = plan.whole("batch.per_device")
    processes = plan.whole("devices.train") if per_device else None
    if not per_device or not processes or given % (per_device * processes) == 0:
        return []
    # Up to 0.19 TRL's own check had its brackets wrong and let some through.
    gate = versions.within("trl", ">=0.20") if plan.framework == "trl" else True
    return found(
        plan,
        "CFG101",
        Severity.ERROR,
        f"generation_batch_size {given} is no multiple of the {per_device * processes} completions that all "
        "devices take in one pass.",
        values(plan, "batch.generation", "batch.per_device", "devices.train"),
        remedy=f"Make it a multiple of {per_device * processes}.",
        gate=gate,
    )


# What comes of a group of one, by framework and estimator, where it is not what its others do.
_OF_ONE = {
    ("verl", "grpo_passk"): "verl ends at the first advantages: Pass@k wants at least 2.",
    ("openrlhf", "dr_grpo"): "OpenRLHF 0.11.2 refuses it; in 0.10.2 every advantage is 0.",
}


@rule("CFG110", check="batches and groups")
def group_of_one(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG110: a group of one has no other to compare with: refused, or a gradient of nought."""
    group = plan.whole("group.size")
    if group != 1 or plan.role != "train":
        return []
    grouped = {"grpo", "rloo", "dr_grpo", "group_norm", "reinforce_baseline", "grpo_passk"}
    if plan.framework in {"trl", "ms-swift"}:
        if plan.framework == "ms-swift" and {"teacher_model", "teacher_model_server"} & set(
            plan.settings.items
        ):
            return []
        silent = False
    elif plan.framework == "verl" and any(key.startswith("distillation.") for key in plan.settings.items):
        # A teacher gives the signal; nothing is compared within the group.
        return []
    elif plan.get("train.estimator") in grouped:
        silent = plan.framework == "verl"
    else:
        return []
    del versions
    told = _OF_ONE.get((plan.framework, plan.get("train.estimator")))
    consequence = told or (
        "verl does not refuse it: every advantage is the bare reward."
        if silent
        else "It is refused before training starts."
    )
    return found(
        plan,
        "CFG110",
        Severity.WARNING if silent and not told else Severity.ERROR,
        f"The group has one completion. {consequence}",
        values(plan, "group.size", "train.estimator"),
        remedy=f"Set {plan.values['group.size'].key} to 2 or more; 8 is usual.",
    )


@rule("CFG102", check="batches and groups")
def verl_batches(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG102: verl's own checks, `validate_config` and `ActorConfig.validate`."""
    if plan.framework != "verl" or plan.get("batch.dynamic") is not False:
        return []
    if plan.settings.about not in _VALIDATED:
        return []
    prompts, mini = plan.whole("batch.prompts"), plan.whole("batch.mini")
    out: list[Finding] = []
    checked = _verl_checks(plan, versions)
    if prompts and mini and prompts < mini:
        out += found(
            plan,
            "CFG102",
            Severity.ERROR,
            f"The {prompts} prompts of a rollout do not fill one mini-batch of {mini}.",
            values(plan, "batch.prompts", "batch.mini", "batch.dynamic"),
            remedy=f"Set actor_rollout_ref.actor.ppo_mini_batch_size to {prompts} or less.",
            gate=checked,
        )
    devices, group = plan.whole("devices.train"), plan.whole("group.size")
    megatron = plan.settings.items.get("actor_rollout_ref.actor.strategy")
    if (
        prompts and group and devices and (prompts * group) % devices
        and not (megatron and megatron.data != "fsdp") and not _names_megatron(plan)
    ):  # fmt: skip
        out += found(
            plan,
            "CFG102",
            Severity.ERROR,
            f"{prompts} prompts x {group} completions are no multiple of the {devices} devices.",
            values(plan, "batch.prompts", "group.size", "devices.train"),
            remedy="Make data.train_batch_size x rollout.n a multiple of the number of devices.",
            gate=checked,
        )
    return out


def _verl_checks(plan: RunPlan, versions: Versions) -> bool | None:
    """Tells whether the release has these checks: from 0.3 on; the micro-batch's old name may be one before that."""
    known = versions.within("verl", ">=0.3")
    actor = "actor_rollout_ref.actor.ppo_micro_batch_size"
    older = actor in plan.settings.items and f"{actor}_per_gpu" not in plan.settings.items
    return known if known is not None or older else True


def _names_megatron(plan: RunPlan) -> bool:
    config = plan.settings.items.get("--config-name")
    return any(".megatron." in key for key in plan.settings.items) or (
        config is not None and "megatron" in str(config.data)
    )


@rule("CFG102", check="batches and groups")
def easyr1_batches(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG102: EasyR1's own checks, in ray_trainer.py and fsdp_workers.py."""
    del versions
    if plan.framework != "easyr1":
        return []
    prompts, mini, group = (plan.whole(name) for name in ("batch.prompts", "batch.mini", "group.size"))
    experience = plan.whole("batch.experience_micro")
    out: list[Finding] = []
    if prompts and mini and prompts % mini:
        out += found(
            plan,
            "CFG102",
            Severity.ERROR,
            f"data.rollout_batch_size {prompts} is no multiple of worker.actor.global_batch_size {mini}.",
            values(plan, "batch.prompts", "batch.mini"),
            remedy=f"Make data.rollout_batch_size a multiple of {mini}.",
        )
    if prompts and group and experience and (prompts * group) % experience:
        out += found(
            plan,
            "CFG102",
            Severity.ERROR,
            f"{prompts} prompts x {group} completions are no multiple of "
            f"micro_batch_size_per_device_for_experience {experience}.",
            values(plan, "batch.prompts", "group.size", "batch.experience_micro"),
            remedy=f"Make the product a multiple of {experience}.",
        )
    return out + _easyr1_per_device(plan)


def _easyr1_per_device(plan: RunPlan) -> list[Finding]:
    mini, devices, micro = (plan.whole(name) for name in ("batch.mini", "devices.train", "batch.micro"))
    group, parallel = plan.whole("group.size"), plan.whole("train.sequence_parallel") or 1
    if not mini or not devices or not micro or not group:
        return []
    ranks = devices // parallel
    per_device = (mini * group) // ranks if ranks else 0
    if per_device and per_device % micro == 0:
        return []
    return found(
        plan,
        "CFG102",
        Severity.ERROR,
        f"global_batch_size {mini} x {group} completions over {ranks} data-parallel ranks are {per_device} for each, "
        f"no multiple of micro_batch_size_per_device_for_update {micro}.",
        values(plan, "batch.mini", "group.size", "devices.train", "train.sequence_parallel", "batch.micro"),
        remedy="Make global_batch_size x n a multiple of ranks x micro batch."
        if ranks
        else f"Lower the sequence parallelism to {devices} or less.",
    )


@rule("CFG102", check="batches and groups")
def openrlhf_batches(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG102: OpenRLHF's check that every actor gets a micro-batch of a rollout."""
    del versions
    if plan.framework != "openrlhf":
        return []
    prompts, group, micro = (
        plan.whole(name) for name in ("batch.prompts", "group.size", "batch.experience_micro")
    )
    devices = plan.whole("devices.train")
    if not prompts or not group or not micro or not devices:
        return []
    for names in (
        ("ds.ring_attn_size", "ring_attn_size"),
        ("ds.tensor_parallel_size", "ds_tensor_parallel_size"),
    ):
        shared = next((plan.settings.items[name].data for name in names if name in plan.settings.items), 1)
        if not isinstance(shared, int) or shared < 1:
            return []
        devices //= shared
    if prompts * group // micro >= devices:
        return []
    return found(
        plan,
        "CFG102",
        Severity.ERROR,
        f"{prompts} prompts x {group} completions in micro-batches of {micro} are fewer than the {devices} actors.",
        values(plan, "batch.prompts", "group.size", "batch.experience_micro", "devices.train"),
        remedy=f"Make prompts x completions / micro-batch {devices} or more, or use fewer actors.",
    )


@rule("CFG102", check="batches and groups")
def deepspeed_batches(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG102: sizes in DeepSpeed's own file that are not those of the arguments; Transformers refuses them."""
    del versions
    if plan.framework not in _GROUPS:
        return []
    out: list[Finding] = []
    pairs = {
        "deepspeed.train_micro_batch_size_per_gpu": "batch.per_device",
        "deepspeed.gradient_accumulation_steps": "batch.accumulation",
    }
    for key, name in pairs.items():
        theirs, ours = plan.settings.items.get(key), plan.whole(name)
        if theirs is None or not isinstance(theirs.data, int) or ours is None or theirs.data == ours:
            continue
        out += found(
            plan,
            "CFG102",
            Severity.ERROR,
            f"DeepSpeed's file says {theirs.data}, and the run has {ours}.",
            [theirs, *values(plan, name)],
            remedy='Write "auto" in DeepSpeed\'s file.',
        )
    return out
