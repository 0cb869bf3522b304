"""Memory: engine and trainer on one device, sleep, and the allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.findings import Severity
from diagnostics.lint.rules.registry import Problem, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diagnostics.lint.run_plan import RunPlan

CHECK = "memory and sleep"
# Above this share even a small model is short of memory beside a trainer. A judgement, not a framework's rule.
_CROWDED_SHARE = 0.8


@rule("CFG105", check=CHECK, warns=True)
def engine_leaves_memory(plan: RunPlan) -> Iterator[Problem]:
    """A colocated engine that never sleeps has to leave the trainer enough memory."""
    share = plan.number("engine.memory_share")
    if plan.get("rollout.mode") != "colocate" or share is None or not _CROWDED_SHARE <= share <= 1:
        return
    if plan.get("engine.sleep") or plan.get("rollout.engine") not in {"vllm", None}:
        return
    sleeps = plan.values.get("engine.sleep")
    if plan.framework in {"verl", "easyr1"} and (sleeps is None or sleeps.data is not False):
        return
    if any(not value.known for value in plan.evidence("engine.sleep", "engine.sleep_level")):
        return
    yield Problem(
        f"The engine takes {share:g} of each GPU's memory and keeps it while the trainer works there; sleep is off.",
        plan.evidence("engine.memory_share", _sleep_name(plan), "rollout.mode"),
        fix="Turn sleep on if the release has it, or give the engine a share that leaves room for weights, gradients "
        "and optimizer.",
        severity=Severity.WARNING,
    )


def _sleep_name(plan: RunPlan) -> str:
    return "engine.sleep_level" if "engine.sleep_level" in plan.values else "engine.sleep"


@rule("CFG106", check=CHECK, frameworks=("trl", "ms-swift"), role="train")
def sleep_has_an_effect(plan: RunPlan) -> Iterator[Problem]:
    """Sleep is for an engine on the trainer's devices."""
    sleep = plan.values.get("engine.sleep_level") or plan.values.get("engine.sleep")
    if sleep is None or sleep.soft or not sleep.known or not sleep.data:
        return
    mode = plan.get("rollout.mode")
    if mode in {"server", "async"}:
        effect = (
            "a server ignores it" if mode == "server" else "it costs time and frees memory that nothing needs"
        )
        yield Problem(
            f"{sleep.key} is set, but the engine has devices of its own: {effect}.",
            [sleep, *plan.evidence("rollout.mode")], fix=f"Leave {sleep.key} out.", severity=Severity.INFO,
        )  # fmt: skip


@rule("CFG112", check=CHECK)
def allocator_allows_sleep(plan: RunPlan) -> Iterator[Problem]:
    """Sleep in vLLM needs a memory pool, which PyTorch does not support with expandable segments."""
    # EasyR1 starts its workers without them, whatever the shell exports (verl/trainer/main.py since 0.3.0).
    if plan.get("memory.expandable") is not True or plan.framework == "easyr1":
        return
    # verl's engine sleeps unless that is turned off.
    if plan.framework == "verl" and plan.get("rollout.mode") == "colocate":
        sleeps = plan.get("engine.sleep") is not False
    else:
        sleeps = bool(plan.get("engine.sleep"))
    if sleeps and plan.get("rollout.engine") in {"vllm", None}:
        yield Problem(
            "PYTORCH_CUDA_ALLOC_CONF enables expandable segments, with which an engine that sleeps does not start in "
            "vLLM 0.8.0 to 0.20.0.",
            plan.evidence("memory.allocator", _sleep_name(plan)), package="vllm",
            fix="Remove expandable_segments:True from PYTORCH_CUDA_ALLOC_CONF.",
            applies=plan.versions.within("vllm", ">=0.8.0,<0.20.1"),
        )  # fmt: skip
