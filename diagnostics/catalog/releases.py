"""Old name of `diagnostics.versions`; to be removed."""

from __future__ import annotations

from diagnostics.versions import in_range as within
from diagnostics.versions import is_release as readable

__all__ = ["readable", "within"]
