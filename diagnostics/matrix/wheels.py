"""Find the wheel of a release in local folders or the package index, and read its Python files without installation.

From a large wheel in the index only the needed parts are fetched. Files that were read are cached by the wheel's
sha256, and need no network again.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import httpx
import msgspec
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from diagnostics import UserError, safe_io
from diagnostics.api_index import archives
from diagnostics.api_index.archives import Archive, ReleaseFile, error_line
from diagnostics.output.redact import mask_and_cut
from diagnostics.safe_io import write_atomically
from diagnostics.uv import find_links


class WheelError(UserError):
    """Raised when a wheel cannot be found or read; `absent`: there is no such wheel, or no such file in it."""

    def __init__(self, message: str, *, absent: bool = False) -> None:
        super().__init__(message)
        self.absent = absent


@dataclass(frozen=True)
class WheelSources:
    """The Python files of a wheel; each is fetched once and then cached in a folder."""

    name: str
    """Name and version, such as 'vllm 0.7.2'."""
    folder: Path
    open_archive: Callable[[], Archive] = field(compare=False)

    def names(self) -> frozenset[str]:
        """Return the paths of the wheel's Python files."""
        return self._names

    def read(self, name: str) -> str:
        """Return the text of one file.

        Raises:
            WheelError: The wheel has no such file (`absent`), it cannot be read, or the name leads out of its folder.
        """
        cached = self._path("files", name)
        if not cached.exists():
            if name not in self._archive.checksums:
                raise WheelError(f"{self.name} has no {name}", absent=True)
            try:
                _write(cached, self._archive.read(name).encode())
            except Exception as error:  # httpx and zipfile raise a dozen kinds
                raise WheelError(f"{self.name}: {name}: {error_line(error)}") from error
        return cached.read_text(encoding="utf-8")

    def _path(self, *parts: str) -> Path:
        """Return a path in the folder; raise WheelError if it, or a link in it, leads out of the folder."""
        path, root = self.folder.joinpath(*parts), self.folder.parent.resolve() / self.folder.name
        if not path.resolve().is_relative_to(root.joinpath(*parts[:-1])):
            raise WheelError(f"{self.name}: {parts[-1]!r}: a file outside of its folder")
        return path

    @cached_property
    def _names(self) -> frozenset[str]:
        listing = self._path("names.json")
        if not listing.exists():
            _write(listing, msgspec.json.encode(sorted(self._archive.checksums)))
        return frozenset(msgspec.json.decode(listing.read_bytes(), type=list[str]))

    @cached_property
    def _archive(self) -> Archive:
        try:
            return self.open_archive()
        except Exception as error:  # httpx and zipfile raise a dozen kinds
            raise WheelError(f"{self.name}: {error_line(error)}") from error


def find_wheel(
    distribution: str, version: str, *, cache: Path, environ: Mapping[str, str] = os.environ
) -> WheelSources:
    """Find the wheel of a release for x86_64 Linux, in the machine's folders of wheels or the package index.

    Raises:
        WheelError: There is no wheel (`absent`), the index cannot be read, or the cached hash is invalid.
    """
    name = f"{distribution} {version}"
    for folder in find_links(environ):
        for path in sorted(folder.glob("*.whl")):
            if is_installable(path.name, distribution, version) and path.is_file():
                with safe_io.open_regular(path) as file:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                return WheelSources(name, cache / sha256, partial(_open_file, path))
    location = cache / "releases" / f"{canonicalize_name(distribution)}=={Version(version)}.json"
    if not location.resolve().is_relative_to(cache.resolve()):
        raise WheelError(f"{location}: a link that leads out of the store")
    if not location.exists():
        _write(location, msgspec.json.encode(_find_in_index(distribution, version, environ)))
    release = msgspec.json.decode(safe_io.read_bytes(location, safe_io.METADATA_LIMIT), type=ReleaseFile)
    if not re.fullmatch(r"[0-9a-f]{64}", release.sha256):
        raise WheelError(
            f"{location}: sha256 is {mask_and_cut(release.sha256, 80)!r}, not 64 hexadecimal digits"
        )
    return WheelSources(name, cache / release.sha256, lambda: archives.open_release(_client(), release))


@functools.cache
def _client() -> httpx.Client:
    """Return the HTTP client shared by all wheels of this process."""
    return archives.connect()


def _open_file(path: Path) -> Archive:
    return archives.open_wheel(zipfile.ZipFile(path))


def _find_in_index(distribution: str, version: str, environ: Mapping[str, str]) -> ReleaseFile:
    """Return the wheel of a release in the package index; raise WheelError if there is none."""
    try:
        releases = archives.list_releases(_client(), distribution, environ=environ)
    except UserError as error:
        raise WheelError(str(error)) from error
    for release in releases:
        filename = release.url.rpartition("/")[2]
        if is_installable(filename, distribution, version) and release.sha256:
            return release
    raise WheelError(f"{distribution} {version}: no wheel for x86_64 Linux in the index", absent=True)


def is_installable(filename: str, distribution: str, version: str) -> bool:
    """Return whether a file name is that of a wheel of this release that x86_64 Linux can install."""
    try:
        name, parsed, _build, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return False
    if name != canonicalize_name(distribution) or parsed != Version(version):
        return False
    platforms = {tag.platform for tag in tags}
    return any(item == "any" or (item.endswith("x86_64") and "linux" in item) for item in platforms)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
