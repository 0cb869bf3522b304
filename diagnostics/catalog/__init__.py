"""The catalog: known issues and check codes, one TOML file each.

This module exports the functions that load entries. The other modules match, search, rank and export them.
"""

from __future__ import annotations

from diagnostics.catalog.loader import (
    FOLDER,
    CatalogError,
    find,
    find_check,
    is_check,
    issues_with_config,
    load,
    load_checks,
    load_file,
)

__all__ = [
    "FOLDER", "CatalogError", "find", "find_check", "is_check", "issues_with_config", "load", "load_checks",
    "load_file",
]  # fmt: skip
