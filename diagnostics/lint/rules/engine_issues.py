"""Rule about known issues: the [[config]] tables of the catalog's entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from diagnostics import catalog
from diagnostics.catalog.model import Issue
from diagnostics.findings import Severity
from diagnostics.lint.rules.registry import Problem, codes_without_table, rule
from diagnostics.lint.run_plan import VOCABULARY, RunPlan
from diagnostics.versions import (
    AFFECTED,
    UNKNOWN,
    UNREADABLE,
    affects,
    issue_package,
)


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
