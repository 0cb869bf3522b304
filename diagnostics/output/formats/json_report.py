"""A report as JSON, with what is personal taken out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from diagnostics.output import clean

if TYPE_CHECKING:
    from diagnostics.output.findings import Report


def render(report: Report) -> str:
    """One JSON document."""
    return json.dumps(clean.shareable(report).to_json(), indent=1, ensure_ascii=False)
