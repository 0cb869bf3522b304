"""The catalog: known issues and check codes, one TOML file each; an invalid file is refused with its line."""

from __future__ import annotations

from diagnostics.catalog.loader import (
    FOLDER,
    CatalogueError,
    find,
    find_check,
    is_check,
    load,
    load_checks,
    load_file,
    with_config,
)

__all__ = [
    "FOLDER",
    "CatalogueError",
    "find",
    "find_check",
    "is_check",
    "load",
    "load_checks",
    "load_file",
    "with_config",
]
