"""Choose among known-good pairs: exclude those that doctor would warn about, and list fixed and new issues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from diagnostics.catalog.model import Issue
from diagnostics.collect.packages import Environment
from diagnostics.compat_table import Compat
from diagnostics.doctor.checks.base import Examined
from diagnostics.doctor.checks.known_issues import known_issues
from diagnostics.doctor.fix_plan import known_good_pins
from diagnostics.doctor.fix_plan.constraints import Constraint, constraints_on
from diagnostics.doctor.fix_plan.known_good_pins import PinnedSet
from diagnostics.findings import Severity
from diagnostics.versions import AFFECTED, NOT_AFFECTED, affects


def choose_sets(
    environment: Environment, compat: Compat, issues: dict[str, Issue], wanted: Iterable[Constraint] = ()
) -> tuple[list[PinnedSet], list[PinnedSet]]:
    """Return the sets to move to, the best first, and those that ran but break another package.

    Args:
        environment: The installed packages, which constrain the sets too.
        compat: The compatibility table.
        issues: The catalog.
        wanted: Requirements of findings and mitigations.
    """
    constraints = [*constraints_on(environment, known_good_pins.PINNED), *wanted]
    reported = _warnings(environment, issues)
    sets = [
        _with_issues(item, environment, issues)
        for item in known_good_pins.known_sets(environment, compat, constraints)
        if _warnings(_moved_to(item, environment), issues) <= reported
    ]
    return sets, known_good_pins.refused_sets(environment, compat, constraints)


def _moved_to(item: PinnedSet, environment: Environment) -> Environment:
    """Return the environment with a set's versions."""
    packages = dict(environment.packages)
    for pin in item.pins:
        if pin.name in packages:
            packages[pin.name] = replace(packages[pin.name], version=pin.version, requires=())
    return replace(environment, packages=packages)


def _warnings(environment: Environment, issues: dict[str, Issue]) -> set[str]:
    """Return the known issues of the installed releases that doctor reports as a warning or an error."""
    results = known_issues(Examined(environment, issues, Compat()))
    return {entry.code for entry in results if entry.severity >= Severity.WARNING}


def _with_issues(item: PinnedSet, environment: Environment, issues: dict[str, Issue]) -> PinnedSet:
    """Return a set with the known issues that it ends and those that it brings."""
    versions = {pin.name: pin.version for pin in item.pins}
    versions["vllm"] = item.pins[0].version
    fixed, brings = [], []
    for code, issue in issues.items():
        if issue.status != "active" or not set(issue.components[:1]) & set(versions):
            continue
        now = affects(issue, environment.releases).answer
        then = affects(issue, environment.releases | versions).answer
        # Releases of the set that were not examined neither fix nor cause an issue.
        if (now, then) == (AFFECTED, NOT_AFFECTED):
            fixed.append(code)
        elif now != AFFECTED and then == AFFECTED:
            brings.append(code)
    return replace(item, gone=tuple(sorted(fixed)), brings=tuple(sorted(brings)))
