"""One module a framework: how it is recognised, from its own words to the run plan, and its defaults.

A dialect is a module of this folder with a `DIALECT`; nothing else has to name it.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diagnostics.lint.dialects.dialect import Dialect

_MODULES = [
    import_module(f"{__name__}.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py"))
    if path.stem not in {"base", "dialect"}
]
# Who is known by a name of its own is asked first.
DIALECTS: dict[str, Dialect] = {
    dialect.framework: dialect
    for dialect in sorted((module.DIALECT for module in _MODULES), key=lambda each: each.rank)
}
