"""Do known issues happen in this cell, each asked by its own code? A layer for each code that has a repro."""

from __future__ import annotations

from diagnostics.matrix.ask import attempts, in_cell

# These are about what can't be imported.
_IMPORTS = frozenset({"CMP002", "CMP003"})

LAYERS = tuple(
    in_cell.layer(
        f"repro:{code}",
        140,
        "repros",
        f"Does {code} happen with the cell's own packages, and which mitigations help?",
        attempts.program((code,)),
        attempts.SCHEMA,
        attempts.read,
        needs=("install",) if code in _IMPORTS else in_cell.USABLE,
        codes=lambda _settings, code=code: (code,),  # type: ignore[misc]
    )
    for code in attempts.MODULES
)
