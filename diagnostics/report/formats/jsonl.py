"""A report as JSON lines: the report itself, then each check, then each finding, one object a line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from diagnostics.report.personal import strip

if TYPE_CHECKING:
    from diagnostics.report.findings import Report


def render(report: Report) -> str:
    """The lines; each has a `type`: report, check or finding."""
    document = report.to_json()
    checks, findings = document.pop("checks"), document.pop("findings")
    lines: list[dict[str, Any]] = [{"type": "report", **document}]
    lines += [{"type": "check", **check} for check in checks]
    lines += [{"type": "finding", **finding} for finding in findings]
    return "\n".join(json.dumps(_stripped(line), ensure_ascii=False) for line in lines)


def _stripped(data: Any) -> Any:
    """The same data with every text stripped of what is personal."""
    if isinstance(data, str):
        return strip(data)
    if isinstance(data, dict):
        return {key: _stripped(value) for key, value in data.items()}
    return [_stripped(item) for item in data] if isinstance(data, list | tuple) else data
