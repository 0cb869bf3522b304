"""The releases that a config is judged for: as given, or as installed where the tool runs (metadata only)."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from diagnostics.frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diagnostics.lint.project import Project

# Option of `lint` -> distributions that carry it, the first that is installed counts.
PACKAGES = {each.name: each.packages for each in FRAMEWORKS.values()} | {"torch": ("torch",)}

# How the folder of a wheel's metadata is called, behind name and release.
_WHEEL = ".dist-info"


class VersionError(ValueError):
    """Raised when a version that was given is none; the message is one line for the user."""


@dataclass(frozen=True)
class Versions:
    """Releases by package; one that is not there is not known.

    Attributes:
        given: Packages whose version the user gave, rather than that it was found installed.
        copies: Frameworks of which the run's project carries a copy of its own, and the folder.
        said: Where the project says a release, one line each.
        fitting: Of a package whose release is not known, those that take every option of the run.
    """

    known: Mapping[str, Version] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    copies: Mapping[str, str] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    fitting: Mapping[str, tuple[Version, ...]] = field(default_factory=dict)

    @property
    def releases(self) -> dict[str, str]:
        """As texts, which is how known issues are asked."""
        return {package: str(version) for package, version in self.known.items()}

    def within(self, package: str, specifier: str) -> bool | None:
        """Tells whether a package's release lies within a range; None where it is not known.

        What the run's options rule out it does not: a release that refuses one of them is not the one it is for. They
        rule nothing in, since there are releases that nobody here has read.

        >>> Versions({"vllm": Version("0.8.5")}).within("vllm", "<0.11"), Versions().within("vllm", "<0.11")
        (True, None)
        >>> newer = Versions(fitting={"verl": (Version("0.9.0"),)})
        >>> newer.within("verl", "<0.7"), newer.within("verl", ">=0.7")
        (False, None)
        """
        if not specifier:
            return True
        version = self.known.get(package)
        if version is not None:
            return _contains(specifier, version)
        fitting = self.fitting.get(package, ())
        return False if fitting and not any(_contains(specifier, each) for each in fitting) else None

    def beside(self, project: Project) -> Versions:
        """These, with what a run's own project says in place of what happens to be installed."""
        known, said = dict(self.known), []
        for name, (specifier, _place) in project.asks.items():
            if name not in self.given and name in known and not _contains(specifier, known[name]):
                del known[name]
        for name, (release, place) in project.pins.items():
            if name not in self.given:
                known[name] = release
                said.append(f"{name} {release}: {place}")
        for name, (copied, place) in project.copies.items():
            said.append(f"{name} is a copy of the project's own, which may differ from any release: {place}")
            if name not in self.given:
                known.pop(name, None)
                if copied is not None:
                    known[name] = copied
        copies = {name: place for name, (_release, place) in project.copies.items()}
        return Versions(known, self.given, copies, tuple(said))


@cache
def _contains(specifier: str, version: Version) -> bool:
    """Asked of every plan again and again; making a SpecifierSet is what takes time."""
    return SpecifierSet(specifier).contains(version, prereleases=True)


def collect(given: Mapping[str, str | None], *, installed: bool = True) -> Versions:
    """The versions given on the command line, and for the rest those installed.

    Raises:
        VersionError: What was given is no version.
    """
    known: dict[str, Version] = {}
    for package, distributions in PACKAGES.items():
        text = given.get(package)
        if text:
            try:
                known[package] = Version(text)
            except InvalidVersion:
                raise VersionError(f"--{package} {text}: expected a version, as 0.8.5") from None
        elif installed:
            version = next((found for name in distributions if (found := _installed(name))), None)
            if version is not None:
                known[package] = version
    return Versions(known, frozenset(package for package, text in given.items() if text))


def _installed(name: str) -> Version | None:
    """The release of a distribution, as `importlib.metadata` tells it, which is loaded where a name does not."""
    for place in sys.path:
        entry = _entries(place or ".").get(name)
        if entry is None:
            continue
        if entry.endswith(_WHEEL) and Path(place, entry, "METADATA").is_file():
            with contextlib.suppress(InvalidVersion):
                return Version(entry.removesuffix(_WHEEL).partition("-")[2])
        return _told(name)
    return None


@cache
def _entries(folder: str) -> dict[str, str]:
    """By distribution, its metadata in a folder of packages: the first where there are two."""
    try:
        names = [name for name in os.listdir(folder) if name.endswith((_WHEEL, ".egg-info"))]  # noqa: PTH208 - quick
    except OSError:
        return {}
    return {
        re.sub(r"[-_.]+", "-", name.rpartition(".")[0].partition("-")[0]).lower(): name
        for name in names[::-1]
    }


def _told(name: str) -> Version | None:
    from importlib import metadata

    try:
        return Version(metadata.version(name))
    except (metadata.PackageNotFoundError, InvalidVersion, TypeError):
        return None
