"""Findings under codes: of known issues, and of the checks' own, which are no known failures (`checks/CODE.toml`)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from diagnostics.catalog.loader import find_check
from diagnostics.output.findings import Evidence, Finding, Severity
from diagnostics.output.remedies import Remedy, Unset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.catalog.model import Issue

_check = cache(find_check)


def known(
    issue: Issue,
    severity: Severity,
    *,
    detail: str,
    evidence: tuple[Evidence, ...],
    remedy: Remedy,
    certainty: str = "supported",
    known_by: str = "static",
) -> Finding:
    """A finding under the code of a known issue that what was read leads to; established only where it was tried."""
    return Finding(
        code=issue.code,
        title=issue.title,
        severity=severity,
        certainty=certainty,
        known_by=known_by,
        detail=detail,
        evidence=evidence,
        remedy=remedy,
        references=tuple(reference.ref for reference in issue.references),
    )


def finding(
    code: str,
    severity: Severity,
    *,
    known_by: str,
    detail: str,
    evidence: tuple[Evidence, ...],
    remedy: Remedy,
    certainty: str = "established",
) -> Finding:
    """A finding under one of these codes; established, where it was read off the environment itself."""
    return Finding(
        code=code,
        title=_check(code).title,
        severity=severity,
        certainty=certainty,
        known_by=known_by,
        detail=detail,
        evidence=evidence,
        remedy=remedy,
    )


def to_unset(
    code: str, severity: Severity, seen: Sequence[tuple[str, str]], advice: str, *, place: str = "environment"
) -> list[Finding]:
    """One finding of environment variables that had better not be set; none where none is.

    Args:
        code: Of the finding.
        severity: Of the finding.
        seen: Each variable, and what was seen of it.
        advice: When to unset them.
        place: Where they were seen.
    """
    if not seen:
        return []
    return [
        finding(
            code,
            severity,
            known_by="static",
            detail="",
            evidence=tuple(Evidence(text, place) for _, text in seen),
            remedy=Remedy.of(advice, Unset(tuple(name for name, _ in seen))),
        )
    ]
