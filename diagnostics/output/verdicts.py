"""Why a triage without a cause is not healthy; belongs to triage, which will set `Report.unresolved`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diagnostics.findings import Report

_TEXT = {
    "unknown": "the log shows a failure that no known issue describes",
    "hypothesis": "the lines that would show the cause are not in these logs",
    "not_judged": "these logs show neither a known failure nor the end of the run",
    "empty": "there was nothing to read",
    "wrapper": "the root cause is not in these logs",
}


def unresolved(report: Report) -> str:
    """Return the reason, with the line to read first; empty if the verdict is resolved."""
    text = _TEXT.get(str(report.subject.get("verdict", "")), "")
    anchors = report.subject.get("anchors") or ()
    first = f"; read first: {anchors[0]['text']} [{anchors[0]['place']}]" if anchors else ""
    return f"{text}{first}" if text else ""
