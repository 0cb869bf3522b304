"""Register doctor's checks: functions that read collected facts and yield findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from diagnostics.catalog.loader import find_check
from diagnostics.catalog.model import Issue
from diagnostics.collect.host import Machine
from diagnostics.collect.packages import Environment
from diagnostics.compat_table import Compat
from diagnostics.findings import Evidence, Finding, NotChecked, Severity
from diagnostics.fixes import Fix

CHECKS = (
    "package metadata", "search path", "entry points", "known issues", "compatibility table", "names of other packages",
    "declared requirements", "compiled modules", "mixed builds", "environment variables", "shared memory", "limits",
    "disks", "memory", "processors", "system libraries", "GPU driver", "GPUs", "network devices", "Ray",
    "default files",
)  # fmt: skip
"""Names of the checks, in the order of the report."""


@dataclass(frozen=True)
class Examined:
    """Input of a check.

    Attributes:
        environment: The environment.
        issues: The known issues of the catalog, by code.
        compat: The compatibility table.
        host: The machine; None if it was not examined.
    """

    environment: Environment
    issues: dict[str, Issue]
    compat: Compat
    host: Machine | None = None

    @property
    def machine(self) -> Machine:
        """The machine, for checks that need one."""
        if self.host is None:
            raise ValueError("the machine was not examined")
        return self.host

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables."""
        return self.environment.variables

    def known_issue(
        self,
        code: str,
        severity: Severity,
        evidence: Iterable[Evidence],
        fix: Fix,
        detail: str,
        **levels: str,
    ) -> Finding:
        """Return a finding under the code of a known issue; see `issue_finding`."""
        return issue_finding(self.issues[code], severity, evidence, fix, detail, **levels)


def issue_finding(
    issue: Issue,
    severity: Severity,
    evidence: Iterable[Evidence],
    fix: Fix,
    detail: str,
    *,
    certainty: str = "supported",
    known_by: str = "static",
) -> Finding:
    """Return a finding under the code of a known issue; pass `established` only if the failure is certain."""
    references = tuple(reference.ref for reference in issue.references)
    texts = (certainty, known_by, detail, tuple(evidence))
    return Finding(issue.code, issue.title, severity, *texts, fix, references)


def finding(
    code: str,
    severity: Severity,
    evidence: Iterable[Evidence],
    fix: Fix,
    detail: str = "",
    *,
    certainty: str = "established",
    known_by: str = "static",
) -> Finding:
    """Return a finding under a check code, with the title of the code's entry."""
    return Finding(code, find_check(code).title, severity, certainty, known_by, detail, tuple(evidence), fix)


@dataclass(frozen=True)
class Check:
    """A registered check. Several functions under one name are reported as one check.

    Attributes:
        name: Name of the check, one of CHECKS.
        find: Function that yields findings.
        skip: Function that returns why the check does not apply, or ""; None if it always applies.
        not_checked: Function that returns the inputs that could not be checked; None if there are none.
        needs_machine: Whether the check needs the facts of the machine.
    """

    name: str
    find: Callable[[Examined], Iterator[Finding]]
    skip: Callable[[Examined], str] | None = None
    not_checked: Callable[[Examined], list[NotChecked]] | None = None
    needs_machine: bool = False


REGISTERED: list[Check] = []


def check(
    name: str,
    *,
    skip: Callable[[Examined], str] | None = None,
    not_checked: Callable[[Examined], list[NotChecked]] | None = None,
    machine: bool = False,
) -> Callable[[Any], Any]:
    """Return a decorator that registers a function as a check or a part of one; raises ValueError for other names."""
    if name not in CHECKS:
        raise ValueError(f"no check is named {name!r}: expected one of {', '.join(CHECKS)}")

    def register(function: Any) -> Any:
        REGISTERED.append(Check(name, function, skip, not_checked, machine))
        return function

    return register
