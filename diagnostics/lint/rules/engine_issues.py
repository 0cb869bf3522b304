"""Rules about known issues: vLLM's scheduler, Ray's address, and the [[config]] tables of the catalog's entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from diagnostics import catalog
from diagnostics.catalog.mitigation_ranking import possible_triggers
from diagnostics.catalog.model import Issue
from diagnostics.findings import Severity
from diagnostics.lint.rules.registry import Problem, codes_without_table, rule
from diagnostics.lint.rules.report import load_entry
from diagnostics.lint.run_plan import VOCABULARY, RunPlan
from diagnostics.versions import (
    AFFECTED,
    UNKNOWN,
    UNREADABLE,
    affects,
    issue_package,
)

CHECK = "engine"
_OVERLONG_TRIGGERS = {"overlong_prompt", "overlong_dropped", "overlong_poisons_next"}


@rule("SCH002", check=CHECK, warnings_only=True)
def long_prompts_are_filtered(plan: RunPlan) -> Iterator[Problem]:
    """Chunked prefill with async output on the V0 engine fails on prompts over max_model_len."""
    if plan.get("engine.chunked_prefill") is not True or plan.get("engine.async_output") is False:
        return
    filters = plan.values.get("data.filters_overlong")
    unfiltered = filters is None and plan.framework in {"verl", "easyr1"}
    if plan.get("data.filters_overlong") is not False and plan.framework != "vllm" and not unfiltered:
        return
    if not _uses_v0(plan):
        return
    entry = load_entry("SCH002")
    # From 0.8.4 on the engine refuses an overlong prompt before the scheduler sees it.
    triggers = tuple(name for name in possible_triggers(entry, plan.releases) if name in _OVERLONG_TRIGGERS)
    applies = _to_bool(affects(entry, plan.releases, plan.framework).answer)
    yield Problem(
        "Chunked prefill with async output on the V0 engine: a prompt over max_model_len is accepted and stops the run "
        "or the next one of the same engine, or another request is dropped silently.",
        plan.evidence("engine.chunked_prefill", "engine.async_output", "data.filters_overlong", "engine.v1"),
        applies=applies and bool(triggers),
        package="vllm",
        triggers=triggers,
        severity=Severity.WARNING,
    )


def _uses_v0(plan: RunPlan) -> bool:
    """Return whether the V0 engine runs: the only one before vLLM 0.8, selectable up to 0.10.2, removed in 0.11."""
    if plan.versions.within("vllm", ">=0.11"):
        return False
    return plan.get("engine.v1") is False or plan.versions.within("vllm", "<0.8") is True


@rule(check="catalogue", warnings_only=True)
def no_known_issue_is_configured(plan: RunPlan) -> Iterator[Problem]:
    """Every known issue of the catalog whose [[config]] matches this run, in an affected release."""
    for entry in _entries_with_table():
        for table in () if entry.status == "retired" else entry.config:
            if not _may_match(plan, table.when) or not all(_equals(plan, *pair) for pair in table.when):
                continue
            yield Problem(
                f"This configuration is the issue's condition: {table.about}.",
                plan.evidence(*(name for name, _ in table.when if name != "framework")),
                code=entry.code,
                applies=_to_bool(affects(entry, plan.releases, plan.framework).answer),
                package=issue_package(entry, plan.framework),
                severity=Severity.WARNING,
            )


@cache
def _entries_with_table() -> tuple[Issue, ...]:
    return tuple(catalog.with_config(codes_without_table()))


def _may_match(plan: RunPlan, conditions: Iterable[tuple[str, object]]) -> bool:
    """Return whether all conditions' names are set and no known value contradicts; else the rule need not read them."""
    pairs = [(plan.values.get(name), expected) for name, expected in conditions]
    return all(value is not None and (not value.known or value.data == expected) for value, expected in pairs)


def _equals(plan: RunPlan, name: str, wanted: object) -> bool:
    if name not in VOCABULARY:
        return False
    data = plan.get(name)
    return data is not None and data == wanted and isinstance(data, bool) == isinstance(wanted, bool)


def _to_bool(answer: str) -> bool | None:
    return None if answer in {UNKNOWN, UNREADABLE} else answer == AFFECTED
