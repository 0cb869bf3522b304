"""The runs in a folder: every file that starts one or configures one, without those of other people's packages."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics.lint import reading
from diagnostics.lint.dialects import DIALECTS
from diagnostics.lint.nearby import NOT_OURS
from diagnostics.lint.sources.tree import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diagnostics.lint.values import Settings

_MOST = 5000
_NAMES = ("dockerfile", "makefile", "justfile")
_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml", ".json", ".toml", ".py", ".ipynb")


def runs_in(folder: Path, framework: str = "") -> list[tuple[Path, list[Settings]]]:
    """The files below a folder that have a run in them, with what they set; of the rest nothing is said."""
    found = []
    for path in islice(_files(folder), _MOST):
        try:
            settings = reading.read_file(path, framework)
        except UnreadableError:
            continue
        if any(each.framework in DIALECTS for each in settings):
            found.append((path, settings))
    return found


def _files(folder: Path) -> Iterator[Path]:
    for root, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if not name.startswith(".") and name not in NOT_OURS)
        for name in sorted(files):
            if name.lower().endswith(_SUFFIXES) or name.lower().startswith(_NAMES):
                path = Path(root, name)
                if path.is_file() and not path.is_symlink():
                    yield path
