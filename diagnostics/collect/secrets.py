"""Old name of `diagnostics.output.redact`; to be removed."""

from __future__ import annotations

from diagnostics.output.redact import EDGE, mask
from diagnostics.output.redact import mask_and_cut as cut

__all__ = ["EDGE", "cut", "mask"]
