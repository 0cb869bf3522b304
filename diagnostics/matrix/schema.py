"""The strict reading of TOML tables, as `matrix.toml` uses it."""

from __future__ import annotations

from diagnostics.tables import Source, Table, close_matches, line_of
from diagnostics.tables import TableError as MatrixError

__all__ = ["MatrixError", "Source", "Table", "close_matches", "line_of"]
