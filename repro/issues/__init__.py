"""One file for each known issue that can be made to happen, named by its code: the files are the only list there is.

A file holds `REPRO`. Its code is in the catalogue, and importing it imports nothing of upstream's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repro.base import Repro

_NAME = re.compile(r"[a-z]{3}\d{3}")


class Discovered(Mapping[str, "Repro"]):
    """The repros by code, in order; the file of one is imported when that one is asked for."""

    def __init__(self) -> None:
        names = (path.stem for path in Path(__file__).parent.glob("*.py"))
        self._codes = tuple(sorted(name.upper() for name in names if _NAME.fullmatch(name)))

    def __getitem__(self, code: str) -> Repro:
        if code not in self._codes:
            raise KeyError(code)
        repro: Repro = import_module(f"{__name__}.{code.lower()}").REPRO
        return repro

    def __iter__(self) -> Iterator[str]:
        return iter(self._codes)

    def __len__(self) -> int:
        return len(self._codes)


REPROS = Discovered()
