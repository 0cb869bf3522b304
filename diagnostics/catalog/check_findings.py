"""Build findings under check codes, which are codes that are no known issues (`checks/CODE.toml`)."""

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
    """Build a finding under a check code, with the title of the code's entry."""
    return Finding(code, find_check(code).title, severity, certainty, known_by, detail, evidence, remedy)


def variables_to_unset(
    code: str, severity: Severity, seen: Sequence[tuple[str, str]], advice: str, *, place: str = "environment"
) -> list[Finding]:
    """Return a list with one finding about environment variables that should not be set; empty if none is.

    Args:
        code: Code of the finding.
        severity: Severity of the finding.
        seen: Each variable, with the text of its evidence.
        advice: Sentence that says when to unset the variables.
        place: Source of the variables.
    """
    if not seen:
        return []
    evidence = tuple(Evidence(text, place) for _, text in seen)
    fix = Fix.of(advice, Unset(tuple(name for name, _ in seen)))
    return [check_finding(code, severity, known_by="static", detail="", evidence=evidence, remedy=fix)]
