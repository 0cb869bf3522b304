"""Old name of `diagnostics.collect.packages`; to be removed."""

from __future__ import annotations

from diagnostics.collect.packages import Environment, Package, collect

__all__ = ["Environment", "Package", "collect"]
