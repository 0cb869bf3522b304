"""Reads source files out of published wheels without installing them.

A vLLM wheel has hundreds of megabytes, its `.py` files that matter a few hundred kilobytes: single members
are read by HTTP range requests. What was read is kept below the store's folder under the wheel's sha256, so
that a second run, and a run without a network, reads from disk.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from diagnostics.collect.secrets import cut
from diagnostics.matrix.build.uv import find_links

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# A wheel up to this size is fetched whole: one request instead of hundreds.
SMALL_BYTES = 8_000_000
LARGEST_SOURCE = 32_000_000


class WheelError(RuntimeError):
    """Raised when a wheel can't be found or read; `absent` means that there is no such wheel."""

    def __init__(self, message: str, *, absent: bool = False) -> None:
        super().__init__(message)
        self.absent = absent


class Sources(Protocol):
    """Where the modules of one distribution can be read."""

    def names(self) -> frozenset[str]:
        """Returns the members of the wheel, as 'vllm/core/scheduler.py'."""

    def read(self, name: str) -> str:
        """Returns the text of one member."""


@dataclass
class HeldSources:
    """Modules held in memory."""

    files: Mapping[str, str]

    def names(self) -> frozenset[str]:
        """Returns the members."""
        return frozenset(self.files)

    def read(self, name: str) -> str:
        """Returns the text of one member."""
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

    @property
    def folder(self) -> Path:
        """Where the members read so far are kept."""
        return self.cache / self.sha256

    def names(self) -> frozenset[str]:
        """Returns the Python members of the wheel."""
        if self._names is None:
            listing = self.folder / "names.json"
            if not listing.exists():
                found = [name for name in self._open().namelist() if name.endswith(".py")]
                _write(listing, json.dumps(found))
            self._names = frozenset(json.loads(listing.read_text(encoding="utf-8")))
        return self._names

    def read(self, name: str) -> str:
        """Returns the text of one member."""
        kept = self.folder / "files" / name
        if ".." in name.split("/") or not kept.is_relative_to(self.folder / "files"):
            raise WheelError(f"{self.distribution} {self.version}: {name!r}: a member outside of its folder")
        if not kept.exists():
            try:
                data = _member(self._open(), name)
            except KeyError:
                raise WheelError(f"{self.distribution} {self.version} has no {name}", absent=True) from None
            except ModuleNotFoundError:
                raise
            except (
                Exception
            ) as error:  # requests, zipfile and remotezip raise a dozen kinds; all mean: not readable now
                raise WheelError(f"{self.distribution} {self.version}: {name}: {_one_line(error)}") from error
            _write(kept, data.decode("utf-8", errors="replace"))
        return kept.read_text(encoding="utf-8")

    def _open(self) -> zipfile.ZipFile:
        if self._archive is None:
            try:
                self._archive = _archive(self.address, self.sha256)
            except ModuleNotFoundError:
                raise
            except Exception as error:
                raise WheelError(f"{self.distribution} {self.version}: {_one_line(error)}") from error
        return self._archive


def check_installed() -> None:
    """Sees to it that wheels can be looked up and read here.

    Raises:
        ModuleNotFoundError: What is needed for that is not installed.
    """
    # By name: an import by a variable would be a use of everything, for the identity of what rests on this file.
    import pypi_simple  # noqa: F401
    import remotezip  # noqa: F401
    import requests  # noqa: F401


def find_wheel(
    distribution: str, version: str, *, cache: Path, environ: Mapping[str, str] = os.environ
) -> WheelSources:
    """Finds the wheel of a release for x86_64 Linux, in the machine's folders of wheels or its index.

    Raises:
        WheelError: when there is none (`absent`), or the index can't be asked.
    """
    known = cache / "found" / f"{canonicalize_name(distribution)}=={Version(version)}.json"
    if not known.exists():
        for folder in find_links(environ):
            for path in sorted(folder.glob("*.whl")):
                if _fits(path.name, distribution, version):
                    return WheelSources(distribution, version, _file_digest(path), os.fspath(path), cache)
        _write(known, json.dumps(_from_index(distribution, version, environ)))
    sha256, address = json.loads(known.read_text(encoding="utf-8"))
    return WheelSources(distribution, version, sha256, address, cache)


def wheel_names(distribution: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the names of all wheels of a distribution for x86_64 Linux, of all releases.

    Raises:
        WheelError: when there is none (`absent`), or the index can't be asked.
    """
    found = [path.name for folder in find_links(environ) for path in folder.glob("*.whl")]
    try:
        found += [package.filename for page in _pages(distribution, environ) for package in page.packages]
    except WheelError:
        if not any(_fits(name, distribution) for name in found):
            raise
    return [name for name in found if _fits(name, distribution)]


def uploads(
    distribution: str, environ: Mapping[str, str] = os.environ
) -> list[tuple[str, datetime.date, str]]:
    """Returns (version, day of upload, Requires-Python) of each wheel for x86_64 Linux; yanked ones are left out.

    Raises:
        WheelError: the index can't be asked, or names no time of upload.
    """
    packages = [
        package
        for page in _pages(distribution, environ)
        for package in page.packages
        if not package.is_yanked and _fits(package.filename, distribution)
    ]
    # Older forms of the index's pages have no times; then its second interface is asked.
    plain = all(package.upload_time is not None for package in packages)
    times = {} if plain else _upload_times(distribution, environ)
    found = []
    for package in packages:
        when = package.upload_time or times.get(package.filename)
        if when is None:
            raise WheelError(f"{distribution}: the index names no time of upload for {package.filename}")
        day = when.astimezone(datetime.UTC).date()
        found.append((str(package.version), day, package.requires_python or ""))
    return found


def _upload_times(distribution: str, environ: Mapping[str, str]) -> dict[str, datetime.datetime]:
    """Returns the time of upload of each file, from the index's JSON interface beside its simple one."""
    import pypi_simple
    import requests

    endpoint = _endpoints(environ, pypi_simple.PYPI_SIMPLE_ENDPOINT)[0].rstrip("/").removesuffix("simple")
    try:
        with requests.get(f"{endpoint}pypi/{distribution}/json", timeout=60) as answer:
            answer.raise_for_status()
            releases = answer.json()["releases"].values()
        return {
            item["filename"]: datetime.datetime.fromisoformat(item["upload_time_iso_8601"])
            for files in releases
            for item in files
        }
    except (requests.RequestException, ValueError, KeyError, TypeError) as error:
        raise WheelError(f"the index names no times of upload: {_one_line(error)}") from error


def requirements(distribution: str, version: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the lines `Requires-Dist` of a release's wheel.

    Raises:
        WheelError: when there is no such wheel (`absent`), or it can't be read.
    """
    sha256, address = _from_index(distribution, version, environ)
    try:
        with _archive(address, sha256) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            text = archive.read(member).decode("utf-8", errors="replace")
    except Exception as error:  # as above: a dozen kinds
        raise WheelError(f"{distribution} {version}: {_one_line(error)}") from error
    return email.message_from_string(text).get_all("Requires-Dist") or []


def _from_index(distribution: str, version: str, environ: Mapping[str, str]) -> tuple[str, str]:
    for page in _pages(distribution, environ):
        for package in page.packages:
            if _fits(package.filename, distribution, version) and package.digests.get("sha256"):
                return package.digests["sha256"], package.url
    raise WheelError(f"{distribution} {version}: no wheel for x86_64 Linux in the index", absent=True)


def _pages(distribution: str, environ: Mapping[str, str]) -> Iterator[Any]:
    """Yields the distribution's page of each index that the machine is told to use and that can be asked.

    Raises:
        WheelError: an index can't be asked, and none after it had the distribution.
    """
    import pypi_simple

    _certificates(environ)
    problem = None
    for endpoint in _endpoints(environ, pypi_simple.PYPI_SIMPLE_ENDPOINT):
        try:
            with pypi_simple.PyPISimple(endpoint) as client:
                page = client.get_project_page(distribution)
        except pypi_simple.NoSuchProjectError:
            continue
        except Exception as error:  # noqa: BLE001 - requests and the page's parser raise many kinds
            problem = WheelError(f"the index cannot be asked for {distribution}: {_one_line(error)}")
            continue
        yield page
    if problem is not None:
        raise problem


def _endpoints(environ: Mapping[str, str], usual: str) -> list[str]:
    """Returns the addresses of the indexes that the machine is told to use."""
    first = environ.get("PIP_INDEX_URL") or environ.get("UV_DEFAULT_INDEX") or usual
    return [first, *(environ.get("PIP_EXTRA_INDEX_URL") or "").split()]


def _fits(filename: str, distribution: str, version: str | None = None) -> bool:
    """Tells whether the file is a wheel of that release (or any) which x86_64 Linux can install."""
    try:
        name, found, _build, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return False
    right = name == canonicalize_name(distribution) and (version is None or found == Version(version))
    platforms = {tag.platform for tag in tags}
    return right and any(item == "any" or (item.endswith("x86_64") and "linux" in item) for item in platforms)


def _certificates(environ: Mapping[str, str]) -> None:
    """Lets `requests` trust what pip is told to trust."""
    if environ.get("PIP_CERT") and not environ.get("REQUESTS_CA_BUNDLE"):
        os.environ["REQUESTS_CA_BUNDLE"] = environ["PIP_CERT"]


def _archive(address: str, sha256: str) -> zipfile.ZipFile:
    """Opens a wheel: a local one, a small one fetched whole and held to its hash, a large one member by member."""
    if "://" not in address:
        return zipfile.ZipFile(address)
    import remotezip
    import requests

    with requests.get(address, stream=True, timeout=60) as answer:
        answer.raise_for_status()
        if int(answer.headers.get("Content-Length", SMALL_BYTES + 1)) <= SMALL_BYTES:
            whole = answer.content
            if sha256 and hashlib.sha256(whole).hexdigest() != sha256:
                raise ValueError("its hash is not the one that the index gives")
            return zipfile.ZipFile(io.BytesIO(whole))
    archive: zipfile.ZipFile = remotezip.RemoteZip(address, timeout=60)
    return archive


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """A member's content, no more of it than a source file has."""
    info = archive.getinfo(name)
    if info.file_size > LARGEST_SOURCE:
        raise ValueError(f"{info.file_size} bytes: no source file")
    with archive.open(info) as file:
        return file.read(info.file_size)


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, text: str) -> None:
    """Writes aside and renames: a file that is there is whole, whoever else writes it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", encoding="utf-8", delete=False
    ) as aside:
        aside.write(text)
    Path(aside.name).replace(path)


def _one_line(error: Any) -> str:
    """Returns an error as one line, without the user and password an index address may carry."""
    text = re.sub(r"//[^/@\s]+@", "//", " ".join(str(error).split()))
    return cut(f"{type(error).__name__}: {text}", 300)
