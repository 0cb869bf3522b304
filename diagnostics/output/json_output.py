"""Format any document as indented JSON; render a report as one JSON document or as JSON lines.

`dump` formats a document, `render` and `render_lines` a report.
"""

import json
from typing import Any

from diagnostics.findings import Report


def dump(document: Any, indent: int | None = 1) -> str:
    """Return a document as JSON; NaN and infinity, which are no JSON, become null."""
    document = json.loads(json.dumps(document), parse_constant=lambda _: None)
    return json.dumps(document, indent=indent, ensure_ascii=False)


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
    return "\n".join(dump(line, None) for line in lines)
