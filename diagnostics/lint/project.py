"""What a run's own project says of the releases it is for: requirements, pins, lock files, and copies that it carries.

Files are read, nothing is imported. The nearest folder that says anything counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from diagnostics import given
from diagnostics.frameworks import FRAMEWORKS
from diagnostics.lint.versions import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

_LARGEST = 1_000_000
_ABOVE = 6
_MANY = 40
# No version and no requirement is longer.
_LONGEST = 1000
# Distribution -> the name that lint has for it.
_NAMES = {canonicalize_name(each): name for name, distributions in PACKAGES.items() for each in distributions}
_VERSION = re.compile(r"(\d+\.\d+(?:\.\d+)?(?:[.\w+]*)?)")
_PINNED = re.compile(
    r"(?<![\w.-])("
    + "|".join(re.escape(str(each)) for each in sorted(_NAMES, key=len, reverse=True))
    + r")(?:\[[\w,\s-]*\])?"
    r"\s*==\s*([0-9][\w.+!-]*)",
    re.IGNORECASE,
)


@dataclass
class Project:
    """What was found.

    Attributes:
        pins: Releases that it pins, by lint's name: the version, and the file that says so.
        copies: Frameworks of which it carries a copy of its own: the release the copy says, or None, and where.
        asks: Packages that it names without a single release.
    """

    pins: dict[str, tuple[Version, str]] = field(default_factory=dict)
    copies: dict[str, tuple[Version | None, str]] = field(default_factory=dict)
    asks: dict[str, tuple[str, str]] = field(default_factory=dict)


@cache
def of(folder: Path) -> Project:
    """What the project around a folder says."""
    found = Project()
    for above in _folders(folder):
        _copies(above, found)
        before = len(found.pins) + len(found.asks)
        for path in _files(above):
            _requirements(path, found)
        if len(found.pins) + len(found.asks) > before and (above / ".git").exists():
            break
    return found


def _folders(folder: Path) -> Iterator[Path]:
    home = Path.home()
    for above in islice((folder, *folder.parents), _ABOVE):
        # What stands at the top of a machine, or of a home, is of no one project.
        if above in {home, Path("/"), Path("/tmp")}:  # noqa: S108 - nothing is written there
            return
        yield above
        if (above / ".git").exists():
            return


def _files(folder: Path) -> list[Path]:
    """The files that may say releases, what is most exact first."""
    named = [folder / name for name in ("uv.lock", "poetry.lock", "pyproject.toml", "setup.py", "setup.cfg")]
    try:
        listed = sorted(islice(folder.iterdir(), 2000))
    except OSError:
        return []
    wanted = re.compile(
        r"(?:.*requirements.*\.(?:txt|in)|environment.*\.ya?ml|Dockerfile.*|install.*\.sh|setup.*\.sh)$"
    )
    return [
        path
        for path in (*named[:2], *[each for each in listed if wanted.match(each.name)][:_MANY], *named[2:])
        if path.is_file()
    ]


def _text(path: Path) -> str:
    try:
        return given.text(path, _LARGEST) if path.stat().st_size <= _LARGEST * 8 else ""
    except (OSError, ValueError):
        return ""


def _copies(folder: Path, found: Project) -> None:
    for base in (folder, folder / "src"):
        for framework, each in FRAMEWORKS.items():
            marks = each.copy
            if marks is None or framework in found.copies or not (base / marks.has).is_file():
                continue
            if marks.lacks and (base / marks.lacks).is_file():
                continue
            texts = (_VERSION.search(_text(base / name)) for name in marks.says)
            said = next((_version(match[1]) for match in texts if match), None)
            found.copies[framework] = (said, str(base / marks.has.split("/", maxsplit=1)[0]))


def _version(text: str) -> Version | None:
    try:
        return Version(text) if len(text) <= _LONGEST else None
    except InvalidVersion:
        return None


def _requirements(path: Path, found: Project) -> None:
    text = _text(path)
    if not any(name in text.lower() for name in _NAMES):
        return
    if path.name.endswith(".lock"):
        try:
            packages = given.parsed_toml(text).get("package", [])
        except ValueError:
            return
        for each in packages if isinstance(packages, list) else ():
            if isinstance(each, dict):
                _pin(str(each.get("name", "")), str(each.get("version", "")), path, found)
        return
    for line in text.splitlines():
        for match in _PINNED.finditer(line.partition("#")[0]):
            _pin(match[1], match[2], path, found)
    if path.suffix in {".txt", ".in"}:
        for line in islice(text.splitlines(), 2000):
            _asked(line.partition("#")[0].strip(), path, found)


def _pin(distribution: str, version: str, path: Path, found: Project) -> None:
    name, release = _NAMES.get(canonicalize_name(distribution)), _version(version)
    if name and release and name not in found.pins:
        found.pins[name] = (release, str(path))


def _asked(line: str, path: Path, found: Project) -> None:
    # Late: of most projects nothing is asked.
    from packaging.requirements import InvalidRequirement, Requirement

    if len(line) > _LONGEST:  # brackets in brackets are read by a function that calls itself
        return
    try:
        requirement = Requirement(line)
    except (InvalidRequirement, RecursionError):
        return
    name = _NAMES.get(canonicalize_name(requirement.name))
    if name and name not in found.pins and name not in found.asks:
        found.asks[name] = (str(requirement.specifier), str(path))
