"""The repros of known issues: each module registers one issue, or several related ones.

Importing a module imports no upstream package.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from repro.base import REGISTRY, Repro

REPROS: dict[str, Repro]


def __getattr__(name: str) -> dict[str, Repro]:
    """Return REPROS, the repros by code, and import their modules for it."""
    if name != "REPROS":
        raise AttributeError(name)
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        import_module(module.name)
    return dict(sorted(REGISTRY.items()))
