"""Old name of `diagnostics.output.prepare`; to be removed."""

from __future__ import annotations

from typing import TypeVar

from diagnostics.output import prepare

T = TypeVar("T")
own = prepare.for_screen


def shareable(value: T, *, places: bool = True) -> T:
    """Redact a value for sharing."""
    return prepare.for_sharing(value, locations=places)
