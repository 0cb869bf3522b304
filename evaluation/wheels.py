"""Read the Python files of released wheels without installing them.

From a large wheel only the needed parts are fetched. Files that were read are cached by the wheel's sha256.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import httpx
import msgspec
from packaging.utils import canonicalize_name
from packaging.version import Version

from diagnostics import UserError
from diagnostics.api_index import archives
from diagnostics.api_index.archives import Archive, ReleaseFile
from diagnostics.api_index.packages import SKIPPED
from diagnostics.safe_io import write_atomically


@dataclass(frozen=True)
class WheelSources:
    """The Python files of a wheel; each is fetched once and then cached in a folder."""

    folder: Path
    open_archive: Callable[[], Archive] = field(compare=False)

    def names(self) -> frozenset[str]:
        """Return the paths of the wheel's Python files."""
        return self._names

    def read(self, name: str) -> str:
        """Return the text of one file; raise UserError if its name leads out of the wheel's folder."""
        files = self.folder / "files"
        cached = files / name
        if not cached.resolve().is_relative_to(files.resolve()):
            raise UserError(f"{name!r}: a file outside of its folder")
        if not cached.exists():
            _write(cached, self._archive.read(name).encode())
        return cached.read_text(encoding="utf-8")

    @cached_property
    def _names(self) -> frozenset[str]:
        listing = self.folder / "names.json"
        if not listing.exists():
            _write(listing, msgspec.json.encode(sorted(self._archive.checksums)))
        return frozenset(msgspec.json.decode(listing.read_bytes(), type=list[str]))

    @cached_property
    def _archive(self) -> Archive:
        return self.open_archive()


def is_module(path: str) -> bool:
    """Return whether a path is a Python module in a package, outside of tests, examples and other skipped folders."""
    return path.endswith(".py") and "/" in path and not SKIPPED.search(path)


def find_wheel(distribution: str, version: str, *, cache: Path) -> WheelSources:
    """Find the wheel of a release for x86_64 Linux in the package index; raise UserError if there is none."""
    location = cache / "releases" / f"{canonicalize_name(distribution)}=={Version(version)}.json"
    if not location.exists():
        _write(location, msgspec.json.encode(_find_in_index(distribution, version)))
    release = msgspec.json.decode(location.read_bytes(), type=ReleaseFile)
    return WheelSources(cache / release.sha256, lambda: archives.open_release(_client(), release, is_module))


@functools.cache
def _client() -> httpx.Client:
    """Return the HTTP client shared by all wheels of this process."""
    return archives.connect()


def _find_in_index(distribution: str, version: str) -> ReleaseFile:
    """Return the wheel of a release in the package index."""
    for release in archives.list_releases(_client(), distribution, since=version):
        if Version(release.version) == Version(version) and release.url.endswith(".whl") and release.sha256:
            return release
    raise UserError(f"{distribution} {version}: no wheel for x86_64 Linux in the index")


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
