"""The known issues: one TOML file each, the schema they keep and the loader that refuses bad ones."""

from __future__ import annotations

from diagnostics.catalogue.loader import FOLDER, CatalogueError, find, load, load_file

__all__ = ["FOLDER", "CatalogueError", "find", "load", "load_file"]
