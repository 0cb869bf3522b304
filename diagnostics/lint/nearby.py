"""The other files of a run's project: which one a path from another machine means, and which of them start it."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from itertools import islice
from pathlib import Path

from diagnostics import given

_MARKS = (".git", "pyproject.toml", "setup.py", "requirements.txt")
_ABOVE = 5
_MOST_FILES = 4000
_MOST_READ, _LARGEST = 400, 200_000
_STARTS = (".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml", ".ipynb")
_NAMES = ("makefile", "justfile", "dockerfile")
# Folders of other people's packages, and of what a run or a build leaves.
NOT_OURS = {
    "node_modules",
    "site-packages",
    "__pycache__",
    "wandb",
    "outputs",
    "checkpoints",
    "venv",
    "build",
    "dist",
}


def _root(start: Path) -> Path | None:
    """The folder that a project has as its root; None where nothing says that there is one."""
    above = [start, *islice(start.parents, _ABOVE)]
    return next((each for mark in _MARKS for each in above if (each / mark).exists()), None)


@lru_cache(maxsize=8)
def _files(root: Path) -> tuple[Path, ...]:
    found = []
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith(".") and name not in NOT_OURS)
        found += [Path(folder, name) for name in sorted(files)]
        if len(found) > _MOST_FILES:
            return ()
    return tuple(found)


def by_tail(name: str, start: Path) -> Path | None:
    """The one file of the project that a path ends in which is not here as it is written.

    Args:
        name: As a script names it, from a folder or a machine that nobody knows.
        start: Where the script lies.
    """
    parts = [part for part in Path(name).parts if part not in {"/", ".", ".."}]
    root = _root(start) if len(parts) > 1 else None
    for length in range(len(parts), 1, -1) if root else ():
        ends = [path for path in _files(root) if path.parts[-length:] == tuple(parts[-length:])]
        if ends:
            return ends[0] if len(ends) == 1 else None
    return None


def starters(path: Path) -> list[str]:
    """The files of the project that start a script, or hand a config on, by their path in it."""
    path = path.absolute()
    root = _root(path.parent)
    if root is None:
        return []
    named = re.compile(rf"(?:^|[\s'\"/=]){re.escape(path.name)}(?:$|[\s'\"\\])", re.MULTILINE)
    both = f"{path.parent.name}/{path.name}"
    texts = (each for each in _files(root) if _starts(each) and each != path)
    found = []
    for each in islice(texts, _MOST_READ):
        try:
            text = given.text(each, _LARGEST) if each.stat().st_size <= _LARGEST else ""
        except OSError:
            continue
        if named.search(text):
            found.append((both not in text, str(each.relative_to(root))))
    return [name for _, name in sorted(found)]


def _starts(path: Path) -> bool:
    return path.suffix.lower() in _STARTS or path.name.lower().startswith(_NAMES)
