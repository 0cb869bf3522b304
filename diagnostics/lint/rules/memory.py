"""Memory: engine and trainer on one device, sleep, and the allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.lint.dialects.openrlhf import spelled
from diagnostics.lint.rules.base import found, values
from diagnostics.lint.rules.registered import rule
from diagnostics.output.findings import Severity

if TYPE_CHECKING:
    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.versions import Versions
    from diagnostics.output.findings import Finding

# Above this share next to a trainer that stays in memory even a small model is short of it. Judgement, not a rule of
# anybody's.
CROWDED = 0.8


@rule("CFG105", check="memory and sleep", warns=True)
def crowded(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG105: the engine keeps most of a device on which the trainer has to work, too."""
    del versions
    share = plan.number("engine.memory_share")
    if plan.get("rollout.mode") != "colocate" or share is None or share < CROWDED or share > 1:
        return []
    if plan.get("engine.sleep") or plan.get("rollout.engine") not in {"vllm", None}:
        return []
    sleeps = plan.values.get("engine.sleep")
    if plan.framework in {"verl", "easyr1"} and (sleeps is None or sleeps.data is not False):
        return []
    # What is set outside of what was read may turn it on.
    if any(not value.known for value in values(plan, "engine.sleep", "engine.sleep_level")):
        return []
    return found(
        plan, "CFG105", Severity.WARNING,
        f"The engine takes {share:g} of each device, keeps it while the trainer works there, and sleep is off.",
        values(plan, "engine.memory_share", _sleep(plan), "rollout.mode"),
        remedy="Turn sleep on where the release has it, or give the engine a share that leaves room for weights, "
        "gradients and optimizer.",
    )  # fmt: skip


def _sleep(plan: RunPlan) -> str:
    """The name under which sleep was set: by level, or on and off."""
    return "engine.sleep_level" if "engine.sleep_level" in plan.values else "engine.sleep"


@rule("CFG105", check="memory and sleep")
def share_out_of_range(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG105: a share above 1 or not above 0: vLLM refuses it."""
    del versions
    share = plan.number("engine.memory_share")
    if share is None or 0 < share <= 1:
        return []
    # Beside a server it is of a local engine that there is none of (CFG107).
    if plan.role == "train" and plan.get("rollout.mode") == "server":
        return []
    return found(
        plan, "CFG105", Severity.ERROR,
        f"The engine's share of the device's memory is {share:g}; it has to be above 0 and at most 1.",
        values(plan, "engine.memory_share"), remedy="Give a number above 0 and up to 1, as 0.5.",
    )  # fmt: skip


@rule("CFG106", check="memory and sleep")
def sleep_without_effect(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG106: sleep is asked of an engine that has devices of its own."""
    asked = plan.values.get("engine.sleep_level") or plan.values.get("engine.sleep")
    if asked is None or asked.soft or not asked.known or not asked.data or plan.role != "train":
        return []
    mode = plan.get("rollout.mode")
    if plan.framework == "openrlhf":
        return _openrlhf(plan, mode, refused=versions.within("openrlhf", ">=0.8") is not False)
    if mode not in {"server", "async"} or plan.framework not in {"trl", "ms-swift"}:
        return []
    return found(
        plan, "CFG106", Severity.INFO,
        "Sleep is for an engine on the trainer's devices; here it is somewhere else, and "
        f"{'does not sleep by this' if mode == 'server' else 'sleeping costs time for memory that nobody waits for'}.",
        [asked, *values(plan, "rollout.mode")], remedy=f"Leave {asked.key} out.",
    )  # fmt: skip


def _openrlhf(plan: RunPlan, mode: str | None, *, refused: bool) -> list[Finding]:
    items = plan.settings.items
    together = items.get("train.colocate_all") or items.get("colocate_all_models")
    if together is not None and plan.get("rollout.async"):
        return found(
            plan, "CFG106", Severity.ERROR,
            "OpenRLHF refuses sleep in an asynchronous run with colocate_all.",
            values(plan, "engine.sleep", "rollout.async"),
            remedy=spelled(plan.settings, "Leave --vllm.enable_sleep out."), gate=refused,
        )  # fmt: skip
    if mode == "async" and together is None:
        return found(
            plan, "CFG106", Severity.INFO,
            "Without colocate_all OpenRLHF turns sleep off again.",
            values(plan, "engine.sleep"), remedy=spelled(plan.settings, "Leave it out, or add --train.colocate_all."),
        )  # fmt: skip
    return []


@rule("CFG112", check="memory and sleep")
def expandable(plan: RunPlan, versions: Versions) -> list[Finding]:
    """CFG112: vLLM's sleep needs a memory pool, and PyTorch has none with expandable segments."""
    # EasyR1 gives its workers the variable without them, whatever the shell says (verl/trainer/main.py since 0.3.0).
    if plan.get("memory.expandable") is not True or plan.framework == "easyr1":
        return []
    # verl's engine sleeps unless it is told not to.
    if plan.framework == "verl" and plan.get("rollout.mode") == "colocate":
        sleeps = plan.get("engine.sleep") is not False
    else:
        sleeps = bool(plan.get("engine.sleep"))
    if not sleeps or plan.get("rollout.engine") not in {"vllm", None}:
        return []
    return found(
        plan, "CFG112", Severity.ERROR,
        "PYTORCH_CUDA_ALLOC_CONF asks for expandable segments, with which an engine that is to sleep does not start in "
        "vLLM 0.8.0 to 0.20.0.",
        values(plan, "memory.allocator", _sleep(plan)), package="vllm",
        remedy="Take expandable_segments:True out of PYTORCH_CUDA_ALLOC_CONF.",
        gate=versions.within("vllm", ">=0.8.0,<0.20.1"),
    )  # fmt: skip
