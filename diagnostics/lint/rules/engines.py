"""Engine: settings that walk into a known issue of vLLM's scheduler, and Ray's address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.catalog.affects import (
    CONCERNED,
    UNKNOWN,
    UNREADABLE,
    affects,
    claims_of,
    of_package,
    subject,
)
from diagnostics.catalog.offers import occurring
from diagnostics.lint.rules.base import entry_of, found, values, with_config
from diagnostics.lint.rules.registered import rule
from diagnostics.output.findings import Evidence, Finding, Severity
from diagnostics.output.remedies import Remedy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.catalog.model import Issue
    from diagnostics.lint.run_plan import RunPlan
    from diagnostics.lint.versions import Versions


_OVERLONG = {"overlong_prompt", "overlong_dropped", "overlong_poisons_next"}


@rule("SCH002", check="engine", warns=True)
def parked_sequence(plan: RunPlan, versions: Versions) -> list[Finding]:
    """SCH002: chunked prefill and async output on the V0 engine, with prompts nobody cut."""
    if plan.get("engine.chunked_prefill") is not True or plan.get("engine.async_output") is False:
        return []
    if plan.get("data.filters_overlong") is not False and plan.framework != "vllm":
        filters = plan.values.get("data.filters_overlong")
        if filters is not None or plan.framework not in {"verl", "easyr1"}:
            return []
    if _v0(plan, versions) is not True:
        return []
    entry = entry_of("SCH002")
    gate = concerned(entry, versions)
    # From 0.8.4 on the engine refuses an over-long prompt before the scheduler sees it.
    ways = tuple(name for name in occurring(entry, versions.releases) if name in _OVERLONG)
    return found(
        plan, "SCH002", Severity.WARNING,
        "Chunked prefill with async output on the V0 engine: a prompt over max_model_len gets in, and stops the run "
        "or the next one of the same engine, or another request is dropped without a word.",
        values(plan, "engine.chunked_prefill", "engine.async_output", "data.filters_overlong", "engine.v1"),
        gate=gate and bool(ways), package="vllm", triggers=ways,
    )  # fmt: skip


def _v0(plan: RunPlan, versions: Versions) -> bool | None:
    """Tells whether the V0 engine runs: the only one before 0.8, by a variable up to 0.10.2, gone from 0.11 on."""
    if versions.within("vllm", ">=0.11"):
        return False
    if plan.get("engine.v1") is False:
        return True
    return versions.within("vllm", "<0.8")


@rule("SCH001", check="engine", warns=True)
def shared_evaluation(plan: RunPlan, versions: Versions) -> list[Finding]:
    """SCH001: evaluation in the main thread while rollouts run ahead on the same engine."""
    if (
        plan.framework != "ms-swift"
        or not plan.get("rollout.async")
        or plan.get("train.evaluates") is not True
    ):
        return []
    gate = _known(of_package(claims_of(entry_of("SCH001"), "ms-swift"), versions.releases.get("ms-swift"))[0])
    if gate is None and "num_infer_workers" not in plan.settings.items:
        return []
    return found(
        plan, "SCH001", Severity.WARNING,
        "async_generate lets rollouts run ahead in a thread, and these releases evaluate on the same engine beside it.",
        values(plan, "rollout.async", "train.evaluates"), gate=gate,
        remedy="--eval_strategy no, no --async_generate, or ms-swift 3.5.0 or newer.",
        triggers=("swift_two_threads",),
    )  # fmt: skip


@rule("ENV902", check="engine")
def ray_address(plan: RunPlan, versions: Versions) -> list[Finding]:
    """ENV902: RAY_ADDRESS is the address of the dashboard."""
    del versions
    address = plan.values.get("ray.address")
    if plan.framework not in {"verl", "easyr1", "openrlhf"}:
        return []
    if address is None or not str(address.data).startswith(("http://", "https://")):
        return []
    if plan.settings.launch.get("launcher") is not None and plan.settings.launch["launcher"].data == "ray":
        return []
    from diagnostics.catalog.own_codes import finding

    return [
        finding(
            "ENV902", Severity.ERROR, known_by="executed",
            detail="ray.init() in this process takes it for the address of a cluster and fails.",
            evidence=(Evidence(address.told, str(address.place)),),
            remedy=Remedy.of("Unset RAY_ADDRESS, or give the cluster's own address, as 10.0.0.1:6379 or auto."),
        )
    ]  # fmt: skip


@rule(check="catalogue", warns=True)
def catalogued(plan: RunPlan, versions: Versions) -> list[Finding]:
    """Every issue of the catalogue whose [[config]] this plan walks into, in a release that is concerned."""
    out: list[Finding] = []
    for entry in with_config():
        for table in () if entry.status == "retired" else entry.config:
            if _may_be(plan, table.when) and all(_equal(plan, name, wanted) for name, wanted in table.when):
                out += found(
                    plan, entry.code, Severity.WARNING, f"Of a config the issue needs this: {table.about}.",
                    values(plan, *(name for name, _ in table.when if name != "framework")),
                    gate=concerned(entry, versions), package=subject(entry),
                )  # fmt: skip
    return out


def _may_be(plan: RunPlan, when: Iterable[tuple[str, object]]) -> bool:
    """Tells whether no known value speaks against it: only then is what is not known worth asking for."""
    held = [(plan.values.get(name), wanted) for name, wanted in when]
    return all(value is not None and (not value.known or value.data == wanted) for value, wanted in held)


def _equal(plan: RunPlan, name: str, wanted: object) -> bool:
    from diagnostics.lint.run_plan import VOCABULARY

    if name not in VOCABULARY:
        return False
    held = plan.get(name)
    return held is not None and held == wanted and isinstance(held, bool) == isinstance(wanted, bool)


def concerned(entry: Issue, versions: Versions) -> bool | None:
    """Tells whether an entry's releases are those at hand; None where that of its package is not known.

    Of a release at which nobody looked nothing is said: a rule that may or may not hold is noise.
    """
    return _known(affects(entry, versions.releases).answer)


def _known(answer: str) -> bool | None:
    return None if answer in {UNKNOWN, UNREADABLE} else answer == CONCERNED
