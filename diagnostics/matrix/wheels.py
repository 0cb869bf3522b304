"""Read source files and metadata of published wheels without installing them.

A vLLM wheel has hundreds of megabytes, its `.py` files that matter a few hundred kilobytes: single members are read by
HTTP range requests. The cache below the store's folder is keyed by the wheel's sha256, so that a second run, and a run
without a network, reads from disk.
"""

from __future__ import annotations

import datetime
import email
import hashlib
import io
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pypi_simple
import remotezip
import requests
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from diagnostics import UserError
from diagnostics.matrix.uv import find_links
from diagnostics.output.redact import mask_and_cut

# A wheel up to this size is fetched whole: one request instead of hundreds.
SMALL_BYTES = 8_000_000
LARGEST_SOURCE = 32_000_000
_TIMEOUT_S = 60.0
_T = TypeVar("_T")


class WheelError(UserError):
    """Raised when a wheel cannot be found or read; `absent` means that there is no such wheel."""

    def __init__(self, message: str, *, absent: bool = False) -> None:
        super().__init__(message)
        self.absent = absent


@dataclass
class MemorySources:
    """Modules in memory."""

    files: Mapping[str, str]

    def names(self) -> frozenset[str]:
        """Return the members."""
        return frozenset(self.files)

    def read(self, name: str) -> str:
        """Return the text of one member."""
        return self.files[name]


@dataclass
class WheelSources:
    """A wheel in an index or a folder of wheels, read member by member."""

    distribution: str
    version: str
    sha256: str
    address: str
    cache: Path
    _archive: zipfile.ZipFile | None = field(default=None, repr=False)
    _names: frozenset[str] | None = field(default=None, repr=False)

    def names(self) -> frozenset[str]:
        """Return the Python members of the wheel."""
        if self._names is None:
            listing = self.cache / self.sha256 / "names.json"
            if not listing.exists():
                names = [name for name in self._open().namelist() if name.endswith(".py")]
                _write_atomically(listing, json.dumps(names))
            self._names = frozenset(json.loads(listing.read_text(encoding="utf-8")))
        return self._names

    def read(self, name: str) -> str:
        """Return the text of one member."""
        folder = self.cache / self.sha256 / "files"
        cached = folder / name
        if ".." in name.split("/") or not cached.is_relative_to(folder):
            raise WheelError(f"{self.distribution} {self.version}: {name!r}: a member outside of its folder")
        if not cached.exists():
            archive = self._open()
            if name not in archive.namelist():
                raise WheelError(f"{self.distribution} {self.version} has no {name}", absent=True)
            data = _readable(f"{self.distribution} {self.version}: {name}", lambda: _member(archive, name))
            _write_atomically(cached, data.decode("utf-8", errors="replace"))
        return cached.read_text(encoding="utf-8")

    def _open(self) -> zipfile.ZipFile:
        if self._archive is None:
            about = f"{self.distribution} {self.version}"
            self._archive = _readable(about, lambda: _open_archive(self.address, self.sha256))
        return self._archive


def find_wheel(
    distribution: str, version: str, *, cache: Path, environ: Mapping[str, str] = os.environ
) -> WheelSources:
    """Find the wheel of a release for x86_64 Linux, in the machine's folders of wheels or its index.

    Raises:
        WheelError: there is none (`absent`), or the index cannot be read.
    """
    location = cache / "found" / f"{canonicalize_name(distribution)}=={Version(version)}.json"
    if not location.exists():
        for folder in find_links(environ):
            for path in sorted(folder.glob("*.whl")):
                if _installable(path.name, distribution, version):
                    with path.open("rb") as file:
                        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                    return WheelSources(distribution, version, sha256, os.fspath(path), cache)
        _write_atomically(location, json.dumps(_find_in_index(distribution, version, environ)))
    sha256, address = json.loads(location.read_text(encoding="utf-8"))
    return WheelSources(distribution, version, sha256, address, cache)


def uploads(
    distribution: str, environ: Mapping[str, str] = os.environ
) -> list[tuple[str, datetime.date, str]]:
    """Return (version, day of upload, Requires-Python) of each wheel for x86_64 Linux that was not yanked.

    Raises:
        WheelError: the index cannot be read, or gives no time of upload.
    """
    packages = [
        package
        for page in _project_pages(distribution, environ)
        for package in page.packages
        if not package.is_yanked and _installable(package.filename, distribution)
    ]
    # Older forms of the index's pages have no upload times; its second interface has them.
    complete = all(package.upload_time is not None for package in packages)
    times = {} if complete else _upload_times(distribution, environ)
    listed = []
    for package in packages:
        uploaded = package.upload_time or times.get(package.filename)
        if uploaded is None:
            raise WheelError(f"{distribution}: the index gives no time of upload for {package.filename}")
        day = uploaded.astimezone(datetime.UTC).date()
        listed.append((str(package.version), day, package.requires_python or ""))
    return listed


def requirements(distribution: str, version: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the lines `Requires-Dist` of a release's wheel.

    Raises:
        WheelError: there is no such wheel (`absent`), or it cannot be read.
    """
    sha256, address = _find_in_index(distribution, version, environ)

    def metadata() -> str:
        with _open_archive(address, sha256) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            return archive.read(member).decode("utf-8", errors="replace")

    text = _readable(f"{distribution} {version}", metadata)
    return email.message_from_string(text).get_all("Requires-Dist") or []


def _upload_times(distribution: str, environ: Mapping[str, str]) -> dict[str, datetime.datetime]:
    """Return the time of upload of each file, from the index's JSON interface."""
    endpoint = _endpoints(environ)[0].rstrip("/").removesuffix("simple")

    def times() -> dict[str, datetime.datetime]:
        with requests.get(f"{endpoint}pypi/{distribution}/json", timeout=_TIMEOUT_S) as response:
            response.raise_for_status()
            files = [item for items in response.json()["releases"].values() for item in items]
        parse = datetime.datetime.fromisoformat
        return {item["filename"]: parse(item["upload_time_iso_8601"]) for item in files}

    return _readable("the index gives no times of upload", times)


def _find_in_index(distribution: str, version: str, environ: Mapping[str, str]) -> tuple[str, str]:
    for page in _project_pages(distribution, environ):
        for package in page.packages:
            if _installable(package.filename, distribution, version) and package.digests.get("sha256"):
                return package.digests["sha256"], package.url
    raise WheelError(f"{distribution} {version}: no wheel for x86_64 Linux in the index", absent=True)


def _project_pages(distribution: str, environ: Mapping[str, str]) -> Iterator[pypi_simple.ProjectPage]:
    """Yield the distribution's page of each configured index that can be read.

    Raises:
        WheelError: an index cannot be read, and none after it had the distribution.
    """
    if environ.get("PIP_CERT") and not environ.get("REQUESTS_CA_BUNDLE"):
        os.environ["REQUESTS_CA_BUNDLE"] = environ["PIP_CERT"]
    problem = None
    for endpoint in _endpoints(environ):
        try:
            with pypi_simple.PyPISimple(endpoint) as client:
                page = client.get_project_page(distribution)
        except pypi_simple.NoSuchProjectError:
            continue
        except Exception as error:  # noqa: BLE001 - requests and the page's parser raise many kinds
            problem = WheelError(f"the index cannot be read for {distribution}: {_one_line(error)}")
            continue
        yield page
    if problem is not None:
        raise problem


def _endpoints(environ: Mapping[str, str]) -> list[str]:
    first = (
        environ.get("PIP_INDEX_URL") or environ.get("UV_DEFAULT_INDEX") or pypi_simple.PYPI_SIMPLE_ENDPOINT
    )
    return [first, *(environ.get("PIP_EXTRA_INDEX_URL") or "").split()]


def _installable(filename: str, distribution: str, version: str | None = None) -> bool:
    """Return whether the file is a wheel of that release (or any) that x86_64 Linux can install."""
    try:
        name, parsed, _build, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return False
    if name != canonicalize_name(distribution) or (version is not None and parsed != Version(version)):
        return False
    platforms = {tag.platform for tag in tags}
    return any(item == "any" or (item.endswith("x86_64") and "linux" in item) for item in platforms)


def _open_archive(address: str, sha256: str) -> zipfile.ZipFile:
    """Open a local wheel; a small remote one is fetched whole and its hash compared, a large one read by ranges."""
    if "://" not in address:
        return zipfile.ZipFile(address)
    with requests.get(address, stream=True, timeout=_TIMEOUT_S) as response:
        response.raise_for_status()
        if int(response.headers.get("Content-Length", SMALL_BYTES + 1)) <= SMALL_BYTES:
            data = response.content
            if sha256 and hashlib.sha256(data).hexdigest() != sha256:
                raise ValueError("its hash differs from the index's")
            return zipfile.ZipFile(io.BytesIO(data))
    archive: zipfile.ZipFile = remotezip.RemoteZip(address, timeout=_TIMEOUT_S)
    return archive


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return a member's content, bounded by the size of a source file."""
    info = archive.getinfo(name)
    if info.file_size > LARGEST_SOURCE:
        raise ValueError(f"{info.file_size} bytes: too large for a source file")
    with archive.open(info) as file:
        return file.read(info.file_size)


def _readable(about: str, read: Callable[[], _T]) -> _T:
    """Return the result of reading; requests, zipfile and remotezip raise a dozen kinds of errors.

    Raises:
        WheelError: one line.
    """
    try:
        return read()
    except Exception as error:
        raise WheelError(f"{about}: {_one_line(error)}") from error


def _write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", encoding="utf-8", delete=False
    ) as aside:
        aside.write(text)
    Path(aside.name).replace(path)


def _one_line(error: Any) -> str:
    """Return an error as one line, without the user and password an index address may carry."""
    text = re.sub(r"//[^/@\s]+@", "//", " ".join(str(error).split()))
    return mask_and_cut(f"{type(error).__name__}: {text}", 300)
