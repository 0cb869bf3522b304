"""Find the files below a folder that `lint` checks, and the files that a script or config names.

Below a folder, files count by suffix (`lintable_files`). Links, caches, installed packages and folders that a run
writes are skipped, and more than 20,000 files are an error.

`find_named` finds a file that another one names, and `find_script` a script or module. A named file must be in the same
project and not larger than `MAX_BYTES`. It is searched in the folder of the file that names it and up to five folders
above (a sourced file: three). A config is also searched in the working folder, if that has the file that names it in
its project; a script also in `src`. Links and `..` are resolved first.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from diagnostics.lint.project_requirements import is_in_project, is_in_working_project, real_folder
from diagnostics.lint.readers.structured import MAX_BYTES, UnreadableError
from diagnostics.output.redact import name_below

# Number of folders above a file in which the files that it names are searched.
_MAX_PARENTS = 5
# Maximum length of a file name in characters, and maximum number of files below a folder that are considered.
_MAX_NAME, _MAX_LINTED = 300, 20_000
# Suffix of a file that can have a config -> its syntax.
SUFFIXES = {
    ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml", ".py": "python", ".sh": "shell",
    ".bash": "shell", ".slurm": "shell", ".sbatch": "shell", ".ipynb": "notebook",
}  # fmt: skip
# Folders that are skipped: version control, caches and installed packages.
_SKIPPED = {
    ".git", ".hg", ".svn", ".venv", ".tox", ".nox", ".cache", ".mypy_cache", ".pytest_cache", ".ruff_cache",
    ".ipynb_checkpoints", ".idea", ".vscode", "node_modules", "site-packages", "__pycache__", "venv",
}  # fmt: skip
# Folders that a run or a build writes; they are not read, and the report names them.
_WRITTEN = {"wandb", "outputs", "checkpoints", "build", "dist"}


def lintable_files(folder: Path, skipped_paths: list[str]) -> Iterator[Path]:
    """Yield the files below a folder whose suffix a config can have; add skipped output folders to `skipped_paths`.

    Raises:
        UnreadableError: The folder has more files than the limit; those up to the limit were yielded.
    """
    for number, path in enumerate(_walk(folder, skipped_paths)):
        if number == _MAX_LINTED:
            raise UnreadableError(f"{folder}: more than {_MAX_LINTED} files; name a smaller folder")
        if path.name.lower().endswith(tuple(SUFFIXES)) and path.is_file() and not path.is_symlink():
            yield path


def _walk(folder: Path, skipped_paths: list[str]) -> Iterator[Path]:
    for root, names, files in os.walk(folder):
        skipped_paths += (f"{name_below(Path(root, name), folder)}/" for name in names if name in _WRITTEN)
        names[:] = sorted(name for name in names if name not in _SKIPPED | _WRITTEN)
        yield from (Path(root, name) for name in sorted(files))


def find_above(name: str, file: str, parents: int = _MAX_PARENTS) -> Path | None:
    """Find a file that `file` names, in the folder of `file` or up to `parents` folders above; None if there is none.

    A file outside of the project of `file` is not found: its text would reach a report that is shared.
    """
    if not name or "\0" in name or len(name) > _MAX_NAME:
        return None
    start = real_folder(file)
    for folder in (start, *list(start.parents)[:parents]):
        try:
            path = folder / name
            if path.is_file() and path.stat().st_size <= MAX_BYTES and is_in_project(path, file):
                return path
        except (OSError, ValueError):
            return None
    return None


def find_named(name: str, file: str) -> Path | None:
    """Find a file that `file` names: in its project's working folder, in its own, or in one above; else None."""
    path = find_above(name, "any name", parents=0) if is_in_working_project(file) else None
    return path or find_above(name.lstrip("/"), file)


def find_script(name: str, file: str, *, module: bool = False) -> Path | None:
    """Find the script or module that a command in `file` names, in its folder or above, also in `src`; else None."""
    relative = name.replace(".", "/") + ".py" if module else name
    return find_above(relative, file) or find_above(f"src/{relative}", file)
