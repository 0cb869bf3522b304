"""The known issues and the checks' own codes: one TOML file each, and the loader that refuses bad ones."""

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
