"""The repros of known issues: each module registers one issue, or several related ones.

Importing these modules imports no upstream package.
"""

import pkgutil
from importlib import import_module

from repro.registry import REGISTRY, Repro

REPROS: dict[str, Repro]


def __getattr__(name: str) -> dict[str, Repro]:
    """Import the modules of the repros on the first use of REPROS, and return it: the repros by code."""
    if name != "REPROS":
        raise AttributeError(name)
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        import_module(module.name)
    return dict(sorted(REGISTRY.items()))
