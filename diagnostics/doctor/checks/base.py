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
        issues: The catalog.
        compat: The table of pairs that were run.
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
        """Environment variables."""
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
    """Return a finding under the code of a known issue; established only if the failure was observed."""
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
    """Return a finding under a check code; its certainty is `established`, since the environment was read."""
    return Finding(code, find_check(code).title, severity, certainty, known_by, detail, tuple(evidence), fix)


@dataclass(frozen=True)
class Check:
    """A registered check. Several functions under one name are reported as one check.

    Attributes:
        name: One of CHECKS.
        find: Yields findings.
        skip: Returns why the check does not apply, or "".
        not_checked: Returns what of it could not be checked.
        needs_machine: Whether it reads the machine.
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
    """Return a decorator that registers a function as (part of) a check; a name that is not in CHECKS is an error."""
    if name not in CHECKS:
        raise ValueError(f"no check is named {name!r}: expected one of {', '.join(CHECKS)}")

    def register(function: Any) -> Any:
        REGISTERED.append(Check(name, function, skip, not_checked, machine))
        return function

    return register
