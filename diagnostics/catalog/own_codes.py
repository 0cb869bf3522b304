"""Old name of `diagnostics.catalog.check_findings`; to be removed."""

from __future__ import annotations

from diagnostics.catalog.check_findings import check_finding, issue_finding, variables_to_unset

finding = check_finding
known = issue_finding
to_unset = variables_to_unset
__all__ = ["finding", "known", "to_unset"]
