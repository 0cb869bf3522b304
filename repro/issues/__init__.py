"""The repros of known issues: each module registers one issue, or several related ones.

Importing a module imports no upstream package.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module

from repro.base import REGISTRY, Repro


class Discovered(Mapping[str, Repro]):
    """The repros by code, sorted; their modules are imported at the first use."""

    @cached_property
    def _all(self) -> dict[str, Repro]:
        for module in pkgutil.iter_modules(__path__, f"{__name__}."):
            import_module(module.name)
        return dict(sorted(REGISTRY.items()))

    def __getitem__(self, code: str) -> Repro:
        return self._all[code]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


REPROS = Discovered()
