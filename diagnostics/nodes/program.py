"""Old name of `diagnostics.collect.remote`; to be removed."""

from __future__ import annotations

from typing import Any

from diagnostics.collect.remote import MARK, Program
from diagnostics.collect.remote import zip_sources as zipped

__all__ = ["MARK", "Carried", "zipped"]


def Carried(look: str, parts: tuple[str, ...], options: dict[str, Any] | None = None) -> Program:  # noqa: N802 - old name
    """Return the program that calls `look` of a module on a node."""
    return Program(look, "look", parts, options or {})
