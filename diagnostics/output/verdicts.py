"""What a report has to say beside its findings: that a log shows a failure which no entry describes, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diagnostics.output.findings import Report

_TOLD = {
    "unknown": "a failure that no entry of the catalogue describes",
    "hypothesis": "what would show the cause is not in these logs",
    "not_judged": "these logs show no failure that is known, and no end of the run",
    "empty": "there was nothing to read",
    "wrapper": "the root is not in these logs",
}


def unresolved(report: Report) -> str:
    """Why a report without a cause is not a good one: a sentence with the line to look at first; empty if it is."""
    told = _TOLD.get(str(report.subject.get("verdict", "")), "")
    if not told:
        return ""
    anchors = report.subject.get("anchors") or ()
    first = f"; look first at: {anchors[0]['text']} [{anchors[0]['place']}]" if anchors else ""
    return f"{told}{first}"
