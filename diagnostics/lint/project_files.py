"""Find other files of a run's project: the scripts and configs that it names, and the scripts that start it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path

from diagnostics import safe_io
from diagnostics.lint.readers.structured import MAX_BYTES

_ROOT_MARKS = (".git", "pyproject.toml", "setup.py", "requirements.txt")
_MAX_PARENTS = 5
_MAX_NAME = 300
_MAX_FILES = 4000
_MAX_STARTERS, _MAX_STARTER_BYTES = 400, 200_000
_STARTER_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml", ".ipynb")
_NAMES = ("makefile", "dockerfile")
_MAX_LINTED = 5000
_LINTED_SUFFIXES = (*_STARTER_SUFFIXES, ".json", ".toml", ".py")
# Version control, caches and other people's packages.
_SKIPPED = {
    ".git", ".hg", ".svn", ".venv", ".tox", ".nox", ".cache", ".mypy_cache", ".pytest_cache", ".ruff_cache",
    ".ipynb_checkpoints", ".idea", ".vscode", "node_modules", "site-packages", "__pycache__", "venv",
}  # fmt: skip
# Folders that a run or a build writes; a report names those that were not read.
_WRITTEN = {"wandb", "outputs", "checkpoints", "build", "dist"}


def lintable_files(folder: Path, passed_over: list[str]) -> Iterator[Path]:
    """Yield the files below a folder that may contain a run; add folders that are not read to `passed_over`."""
    for path in islice(_walk(folder, passed_over), _MAX_LINTED):
        name = path.name.lower()
        may_have_run = name.endswith(_LINTED_SUFFIXES) or name.startswith(_NAMES)
        if may_have_run and path.is_file() and not path.is_symlink():
            yield path


def _walk(folder: Path, passed_over: list[str]) -> Iterator[Path]:
    for root, names, files in os.walk(folder):
        passed_over += (f"{Path(root, name).relative_to(folder)}/" for name in names if name in _WRITTEN)
        names[:] = sorted(name for name in names if name not in _SKIPPED | _WRITTEN)
        yield from (Path(root, name) for name in sorted(files))


def find_above(name: str, file: str, parents: int = _MAX_PARENTS) -> Path | None:
    """Find a file of readable size that another file names, from that file's folder or one above."""
    if not name or "\0" in name or len(name) > _MAX_NAME:
        return None
    start = Path(file).absolute().parent
    for folder in (start, *list(start.parents)[:parents]):
        try:
            path = folder / name
            if path.is_file() and path.stat().st_size <= MAX_BYTES:
                return path
        except (OSError, ValueError):
            return None
    return None


def find_script(name: str, file: str, *, module: bool = False) -> Path | None:
    """Find the Python script or module that a command names, from the folder of its file or one above."""
    if not name or "\0" in name or len(name) > _MAX_NAME:
        return None
    relative = name.replace(".", "/") + ".py" if module else name
    return find_above(relative, file) or find_above(f"src/{relative}", file)


def _project_root(start: Path) -> Path | None:
    above = [start, *islice(start.parents, _MAX_PARENTS)]
    return next((folder for mark in _ROOT_MARKS for folder in above if (folder / mark).exists()), None)


@lru_cache(maxsize=8)
def project_listing(root: Path) -> tuple[Path, ...]:
    """List the files of a project; empty if there are too many."""
    files = tuple(islice(_walk(root, []), _MAX_FILES + 1))
    return files if len(files) <= _MAX_FILES else ()


def find_starters(path: Path) -> list[str]:
    """Return the files of the project that start a script or pass a config on, by their path in it."""
    path = path.absolute()
    root = _project_root(path.parent)
    if root is None:
        return []
    mention = re.compile(rf"(?:^|[\s'\"/=]){re.escape(path.name)}(?:$|[\s'\"\\])", re.MULTILINE)
    with_folder = f"{path.parent.name}/{path.name}"
    candidates = (file for file in project_listing(root) if _may_start(file) and file != path)
    starters = []
    for candidate in islice(candidates, _MAX_STARTERS):
        try:
            small = candidate.stat().st_size <= _MAX_STARTER_BYTES
            text = safe_io.read_text(candidate, _MAX_STARTER_BYTES) if small else ""
        except OSError:
            continue
        if mention.search(text):
            starters.append((with_folder not in text, str(candidate.relative_to(root))))
    return [name for _, name in sorted(starters)]


def _may_start(path: Path) -> bool:
    return path.suffix.lower() in _STARTER_SUFFIXES or path.name.lower().startswith(_NAMES)
