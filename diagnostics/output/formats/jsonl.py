"""A report as JSON lines: the report itself, then each check, then each finding, one object a line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from diagnostics.output import clean

if TYPE_CHECKING:
    from diagnostics.output.findings import Report


def render(report: Report) -> str:
    """The lines; each has a `type`: report, check or finding."""
    document = clean.shareable(report).to_json()
    checks, findings = document.pop("checks"), document.pop("findings")
    lines: list[dict[str, Any]] = [{"type": "report", **document}]
    lines += [{"type": "check", **check} for check in checks]
    lines += [{"type": "finding", **finding} for finding in findings]
    return "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
