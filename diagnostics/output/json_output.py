"""Format any document as indented JSON; render a report as one JSON document or as JSON lines.

`dump` formats a document, `render` and `render_lines` a report.
"""

from __future__ import annotations

import json
from typing import Any

from diagnostics.findings import Report


def dump(document: Any) -> str:
    """Return a document as indented JSON."""
    return json.dumps(document, indent=1, ensure_ascii=False)


def render(report: Report) -> str:
    """Return a report as one JSON document."""
    return dump(report.to_json())


def render_lines(report: Report) -> str:
    """Return JSON lines: the report, each check, each finding; the key `type` has the kind of a line."""
    document = report.to_json()
    checks, findings = document.pop("checks", []), document.pop("findings", [])
    lines: list[dict[str, Any]] = [{"type": "report", **document}]
    lines += [{"type": "check", **check} for check in checks]
    lines += [{"type": "finding", **finding} for finding in findings]
    return "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
