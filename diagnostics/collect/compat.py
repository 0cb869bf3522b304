"""Old name of `diagnostics.compat_table`; to be removed."""

from __future__ import annotations

from diagnostics.compat_table import PATH, SCHEMA, Compat, load, problem_of
from diagnostics.compat_table import StaticResult as Read

__all__ = ["PATH", "SCHEMA", "Compat", "Read", "load", "problem_of"]
