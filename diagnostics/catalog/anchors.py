"""Old name of `diagnostics.catalog.literal_prefilter`; to be removed."""

from __future__ import annotations

from diagnostics.catalog.literal_prefilter import (
    SHORTEST,
    PatternSet,
    any_of,
    literals,
    longest_plain_part,
    required_literals,
)

required = required_literals
plainest = longest_plain_part
union = any_of
__all__ = ["SHORTEST", "PatternSet", "literals", "plainest", "required", "union"]
