"""Make findings under codes of checks that are no known issues (`checks/CODE.toml`)."""

from __future__ import annotations

from collections.abc import Sequence

from diagnostics.catalog.loader import find_check
from diagnostics.findings import Evidence, Finding, Fix, Severity
from diagnostics.fixes import Unset


def check_finding(
    code: str,
    severity: Severity,
    *,
    known_by: str,
    detail: str,
    evidence: tuple[Evidence, ...],
    remedy: Fix,
    certainty: str = "established",
) -> Finding:
    """Return a finding under a check's own code; established, because it was read from the environment itself."""
    return Finding(code, find_check(code).title, severity, certainty, known_by, detail, evidence, remedy)


def variables_to_unset(
    code: str, severity: Severity, seen: Sequence[tuple[str, str]], advice: str, *, place: str = "environment"
) -> list[Finding]:
    """Return one finding about environment variables that should not be set; none if none is set.

    Args:
        code: Code of the finding.
        severity: Its severity.
        seen: Each variable with what was read of it.
        advice: When to unset them.
        place: Where they were read.
    """
    if not seen:
        return []
    evidence = tuple(Evidence(text, place) for _, text in seen)
    fix = Fix.of(advice, Unset(tuple(name for name, _ in seen)))
    return [check_finding(code, severity, known_by="static", detail="", evidence=evidence, remedy=fix)]
