"""Old name of `diagnostics.catalog.mitigation_ranking`; to be removed."""

from __future__ import annotations

from diagnostics.catalog.mitigation_ranking import (
    edits_for,
    finding_of_issue,
    issue_summary,
    possible_triggers,
    recommended_fix,
)

as_finding = finding_of_issue
remedy = recommended_fix
told = issue_summary
occurring = possible_triggers
__all__ = ["as_finding", "edits_for", "occurring", "remedy", "told"]
