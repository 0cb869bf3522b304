"""What the nodes are sent: our code, the programs of the cells, the matrix file and its locks. No environment."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics.matrix.ask.layers.conformance import SUITE
from diagnostics.matrix.build.paths import ROOT, STAGED

if TYPE_CHECKING:
    from diagnostics.matrix.build.workplace import Workplace

MATRIX = "matrix.toml"


def write(workplace: Workplace, folder: Path) -> Path:
    """Writes it into an empty folder, as the project lies on a machine where the matrix runs; returns the folder."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "diagnostics", folder / "diagnostics", ignore=ignore)
    for name in STAGED:
        shutil.copytree(workplace.programs / name, folder / name, ignore=ignore)
    shutil.copytree(ROOT / SUITE, folder / SUITE, ignore=ignore)
    for package in Path(SUITE).parents:
        if (ROOT / package / "__init__.py").is_file():
            shutil.copy(ROOT / package / "__init__.py", folder / package)
    shutil.copyfile(workplace.matrix.path, folder / MATRIX)
    if workplace.locks.is_dir():
        shutil.copytree(workplace.locks, folder / "locks", ignore=ignore)
    return folder
