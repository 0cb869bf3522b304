"""Old name of `diagnostics.output.locations`; to be removed."""

from __future__ import annotations

from diagnostics.findings import Location as Spot
from diagnostics.output.locations import file_locations as spots

__all__ = ["Spot", "spots"]
