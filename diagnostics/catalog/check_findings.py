"""Build findings under check codes, which are codes that are no known issues (`checks/CODE.toml`)."""

from __future__ import annotations

from diagnostics.catalog.loader import find_check
from diagnostics.findings import Evidence, Finding, Fix, Severity


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
