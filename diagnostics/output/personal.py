"""Old name of `diagnostics.output.redact`; to be removed."""

from __future__ import annotations

from diagnostics.output.redact import redact as strip
from diagnostics.output.redact import redact_path as folders

__all__ = ["folders", "strip"]
