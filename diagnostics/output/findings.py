"""Old name of `diagnostics.findings`; to be removed."""

from __future__ import annotations

from diagnostics.findings import (
    FINDINGS,
    FINE,
    INCOMPLETE,
    SCHEMA,
    USAGE,
    CheckResult,
    Evidence,
    Finding,
    NotChecked,
    Report,
    Severity,
)

NotJudged = NotChecked
__all__ = [
    "FINDINGS", "FINE", "INCOMPLETE", "SCHEMA", "USAGE", "CheckResult", "Evidence", "Finding", "NotJudged", "Report",
    "Severity",
]  # fmt: skip
