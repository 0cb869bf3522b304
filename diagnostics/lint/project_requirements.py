"""Find the releases that a run's project requires: in lock files, exact pins, and own copies of a framework.

`read_project` reads a folder and up to five folders above, as far as the project's `.git`; a home folder, `/` and
`/tmp` do not count. Nothing is imported. For each package, the nearest folder that names a release counts.
`is_in_project` and `is_in_working_project` return whether a file is in the project of another file or of the working
folder.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from diagnostics import safe_io
from diagnostics.frameworks import FRAMEWORKS
from diagnostics.versions import parse_version

# Name of a framework or package in `lint` -> distributions that contain it; the first that is installed counts.
PACKAGES = {framework.name: framework.packages for framework in FRAMEWORKS.values()} | {"torch": ("torch",)}

_MAX_BYTES = 1_000_000
_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
# Maximum number of folders of a project, of files in one that may pin releases, and of its entries that are listed.
_MAX_FOLDERS = 6
_MAX_FILES = 40
_MAX_ENTRIES = 2000
# Distribution -> name in `lint`.
_NAMES = {
    canonicalize_name(distribution): name
    for name, distributions in PACKAGES.items()
    for distribution in distributions
}
_VERSION = re.compile(r"(\d+\.\d+(?:\.\d+)?(?:[.\w+]*)?)")
_PIN = re.compile(
    r"(?<![\w.-])("
    + "|".join(re.escape(str(name)) for name in sorted(_NAMES, key=len, reverse=True))
    + r")(?:\[[\w,\s-]*\])?\s*==\s*([0-9][\w.+!-]*)",
    re.IGNORECASE,
)
# A tag of a repository: `verl @ git+https://github.com/volcengine/verl.git@v0.5.0`; `verl @` is optional.
_TAG = re.compile(
    r"(?:^|[\s\"'])(?:([\w.-]{1,100})(?:\[[\w,\s-]*\])?\s*@\s*)?git\+[^\s@\"']{1,200}?/([\w.-]{1,100}?)(?:\.git)?"
    r"@(?:[\w.]{1,50}-)?v?(\d+\.\d+[\w.]*)"
)
# An entry of uv.lock or poetry.lock.
_LOCKED = re.compile(r'^name = "([\w.-]+)"\nversion = "([^"]+)"', re.MULTILINE)
_REQUIREMENT_FILE = re.compile(
    r"(?:.*requirements.*\.(?:txt|in)|environment.*\.ya?ml|Dockerfile.*|install.*\.sh|setup.*\.sh)$"
)


@dataclass
class Project:
    """The releases of a project.

    Attributes:
        pins: Package -> (pinned release, file that pins it).
        copies: Framework whose source the project contains -> (release of the copy or None, folder of its package).
    """

    pins: dict[str, tuple[Version, str]] = field(default_factory=dict)
    copies: dict[str, tuple[Version | None, str]] = field(default_factory=dict)


@cache
def read_project(folder: Path) -> Project:
    """Read the releases that a folder and the folders above it in the same project require."""
    project = Project()
    for above in _project_folders(folder):
        further = _read_folder(above)
        project.pins = further.pins | project.pins
        project.copies = further.copies | project.copies
    return project


@cache
def _read_folder(folder: Path) -> Project:
    """Read the releases that the files of one folder require."""
    project = Project()
    _add_copies(folder, project)
    for path in _requirement_files(folder):
        _add_requirements(path, folder, project)
    return project


def real_folder(file: str | Path) -> Path:
    """Return the folder of a file after `..` and links are resolved, from which files and projects are searched."""
    return Path(os.path.realpath(file)).parent


def _is_top(folder: Path) -> bool:
    """Return whether a folder is the top of a machine or a home, whose files belong to no project."""
    return folder in {Path(os.path.realpath(top)) for top in (Path.home(), "/", "/tmp")}  # noqa: S108 - not written


def _project_folders(folder: Path) -> Iterator[Path]:
    """Yield a folder and the folders above it in the same project, at most six together."""
    for above in islice((folder, *folder.parents), _MAX_FOLDERS):
        if _is_top(above):
            return
        yield above
        if (above / ".git").exists():
            return


def _project_root(folder: Path) -> Path | None:
    """Return the folder with `.git`, else the nearest one with a project or requirements file; None without them."""
    marked = [above for above in _project_folders(folder) if _is_marked(above)]
    return marked[-1 if marked and (marked[-1] / ".git").exists() else 0] if marked else None


def _is_marked(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in (".git", *_PROJECT_FILES, "requirements.txt"))


def _is_repository(folder: Path) -> bool:
    """Return whether a folder is a repository of its own; a submodule, whose `.git` is a file, is none."""
    try:
        return "/modules/" not in safe_io.read_text(folder / ".git", _MAX_BYTES)
    except (OSError, ValueError):
        return (folder / ".git").is_dir()


def is_in_project(path: Path, file: str) -> bool:
    """Return whether a file, after links are resolved, is in the project of another file.

    The project is the folder with `.git`, or else the nearest one with a project or requirements file. Without them it
    is the other file's own folder, without its subfolders if that is a home folder, `/` or `/tmp`. A repository in it
    is another project, and so is a folder with such a file if the project has none.
    """
    folder, resolved = real_folder(file), Path(os.path.realpath(path))
    if _is_top(folder):
        return resolved.parent == folder
    marked = _project_root(folder)
    root, is_other = marked or folder, _is_repository if marked else _is_marked
    inner = resolved.parents[: len(resolved.parents) - len(root.parents) - 1]
    return resolved.is_relative_to(root) and not any(map(is_other, inner))


def is_in_working_project(file: str) -> bool:
    """Return whether a file is in the project of the working folder, and not in another project inside of it."""
    own, here = (_project_root(folder) or folder for folder in map(real_folder, (file, "any name")))
    return own == here and is_in_project(Path(file), "any name")


def _requirement_files(folder: Path) -> list[Path]:
    """Return the files of a folder that may pin releases, lock files first."""
    try:
        listing = sorted(islice(folder.iterdir(), _MAX_ENTRIES))
    except OSError:
        return []
    matching = [path for path in listing if _REQUIREMENT_FILE.match(path.name)][:_MAX_FILES]
    named = [folder / name for name in ("uv.lock", "poetry.lock", *_PROJECT_FILES)]
    return [path for path in (*named[:2], *matching, *named[2:]) if path.is_file()]


def _read_text(path: Path, folder: Path) -> str:
    """Return the text of a file of at most 1 MB; empty if it cannot be read, or is outside of a folder's project."""
    try:
        return safe_io.read_text(path, _MAX_BYTES) if is_in_project(path, f"{folder}/any name") else ""
    except (OSError, ValueError):
        return ""


def _add_copies(folder: Path, project: Project) -> None:
    """Add the frameworks whose source is in a folder or its `src`, with the release in their version files."""
    for base in (folder, folder / "src"):
        for name, framework in FRAMEWORKS.items():
            marks = framework.copy
            if marks is None or name in project.copies or not (base / marks.contains).is_file():
                continue
            if marks.excludes and (base / marks.excludes).is_file():
                continue
            matches = (_VERSION.search(_read_text(base / file, folder)) for file in marks.version_files)
            release = next((parse_version(match[1]) for match in matches if match), None)
            project.copies[name] = (release, str(base / marks.contains.split("/", maxsplit=1)[0]))


def _add_requirements(path: Path, folder: Path, project: Project) -> None:
    """Add the pinned releases in a file; those that an earlier file pins stay."""
    text = _read_text(path, folder)
    if "git+" not in text and not any(name in text.lower() for name in _NAMES):
        return
    locked = _LOCKED.findall(text) if path.name.endswith(".lock") else []
    pins = [(name, version) for name, version in locked if canonicalize_name(name) in _NAMES]
    source = re.sub("#.*", "", text)
    pins += _PIN.findall(source)
    pins += [(name or repository, version) for name, repository, version in _TAG.findall(source)]
    for distribution, version in pins:
        key, release = canonicalize_name(distribution), parse_version(version)
        # The name of a repository is that of its framework, also if that is in no registry.
        name = _NAMES.get(key, key)
        if name in PACKAGES and release and name not in project.pins:
            project.pins[name] = (release, str(path))
