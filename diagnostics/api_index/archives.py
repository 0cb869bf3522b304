"""List the releases of a package on the package index, and read the source files of their wheels and sdists.

From a large wheel only the needed blocks are fetched, by HTTP range requests. Nothing is installed or run.
"""

from __future__ import annotations

import email
import hashlib
import io
import os
import re
import ssl
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from diagnostics import UserError
from diagnostics.output.redact import mask_and_cut

_BLOCK = 1 << 20
_SMALL = 12_000_000
_LARGEST_MEMBER = 8_000_000
_LARGEST_SDIST = 200_000_000
_LARGEST_UNPACKED = 1_000_000_000
_PURELIB = re.compile(r"^[\w.+!-]+\.data/(?:purelib|platlib)/")
_JSON = "application/vnd.pypi.simple.v1+json"
# Folders that a run does not import.
_SKIPPED = re.compile(
    r"(^|/)(tests?|testing|examples?|benchmarks?|docs?|third_party|thirdparty|node_modules|\.github)/"
)


@dataclass(frozen=True)
class ReleaseFiles:
    """The distribution file to read for one release: a wheel if there is one, else the sdist.

    Attributes:
        url: Address of the file.
        sha256: Hash of the file; empty if the index has none.
        size: Size of the file in bytes; 0 if the index has none.
        day: The day of the first upload.
    """

    version: str
    url: str
    sha256: str
    size: int
    day: str
    requires_python: str


@dataclass
class Archive:
    """An opened wheel or sdist: the names of its members, and how to read them."""

    checksums: dict[str, str]
    """Path in site-packages -> checksum and size."""
    read: Callable[[str], str]
    metadata: dict[str, Any] = field(default_factory=dict)


def connect() -> httpx.Client:
    """Return an HTTP client for the package index."""
    certificates = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    return httpx.Client(timeout=120, follow_redirects=True, verify=certificates)


def list_releases(
    client: httpx.Client,
    package: str,
    *,
    since_day: str = "",
    since: str = "0",
    environ: Mapping[str, str] = os.environ,
) -> list[ReleaseFiles]:
    """Return the final and post releases of a package that were not yanked, oldest first.

    Raises:
        UserError: An index cannot be read.
    """
    by_version: dict[Version, list[dict[str, Any]]] = {}
    for item in _listed_files(client, package, environ):
        version = _version_of(item["filename"])
        if version is not None and not version.is_prerelease and not item.get("yanked"):
            by_version.setdefault(version, []).append(item)
    releases = []
    for version in sorted(item for item in by_version if item >= Version(since)):
        items = by_version[version]
        day = min(item.get("upload-time", "")[:10] for item in items)
        chosen = min(items, key=lambda item: (_preference(item["filename"]), item["filename"]))
        if day >= since_day and _preference(chosen["filename"]) < len(_PREFERENCES):
            files = ReleaseFiles(
                version=str(version),
                url=chosen["url"],
                sha256=chosen.get("hashes", {}).get("sha256", ""),
                size=chosen.get("size") or 0,
                day=day,
                requires_python=chosen.get("requires-python") or "",
            )
            releases.append(files)
    return releases


def _listed_files(client: httpx.Client, package: str, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the files of a package on pip's index and extra indexes; an index may not have the package."""
    first = environ.get("PIP_INDEX_URL") or environ.get("UV_DEFAULT_INDEX") or "https://pypi.org/simple"
    files = []
    for index in (first, *environ.get("PIP_EXTRA_INDEX_URL", "").split()):
        try:
            answer = client.get(f"{index.rstrip('/')}/{package}/", headers={"Accept": _JSON})
            if answer.status_code != httpx.codes.NOT_FOUND:
                files += answer.raise_for_status().json()["files"]
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError) as error:
            raise UserError(f"the index cannot be read for {package}: {error_line(error)}") from error
    return files


def error_line(error: Exception) -> str:
    """Return an error on one line, without the user and password that an address may contain."""
    text = re.sub(r"//[^/@\s]+@", "//", " ".join(str(error).split()))
    return mask_and_cut(f"{type(error).__name__}: {text}", 300)


_PREFERENCES = (
    re.compile(r"-none-any\.whl$"),
    re.compile(r"-(cp311-cp311|cp3\d+-abi3)-(manylinux|linux)\w*x86_64\.whl$"),
    re.compile(r"-(manylinux|linux)\w*x86_64\.whl$"),
    re.compile(r"\.tar\.gz$"),
    re.compile(r"-(manylinux|linux)\w*\.whl$"),
)


def _preference(filename: str) -> int:
    matches = (at for at, pattern in enumerate(_PREFERENCES) if re.search(pattern, filename))
    return next(matches, len(_PREFERENCES))


def _version_of(filename: str) -> Version | None:
    try:
        parse = parse_wheel_filename if filename.endswith(".whl") else parse_sdist_filename
        return parse(filename)[1]
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None


def open_release(client: httpx.Client, release: ReleaseFiles, *, configs: bool = False) -> Archive:
    """Open the wheel or sdist of a release; `configs` adds the YAML files in folders named config.

    Raises:
        ValueError: A file that is fetched completely is too large, or its hash differs from the index's.
    """
    if not release.url.endswith(".whl"):
        return _open_sdist(_download(client, release, _LARGEST_SDIST), configs=configs)
    size = release.size or int(client.head(release.url).raise_for_status().headers["Content-Length"])
    source: Any
    if size <= _SMALL:
        source = io.BytesIO(_download(client, release, _SMALL))
    else:
        source = io.BufferedReader(_RangeFile(client, release.url, size), 1 << 16)
    return open_wheel(zipfile.ZipFile(source), configs=configs)


def open_wheel(archive: zipfile.ZipFile, *, configs: bool = False) -> Archive:
    """Return the indexed members of a wheel as an Archive.

    Raises:
        ValueError: The indexed members are too large together.
    """
    members = {_PURELIB.sub("", info.filename): info for info in archive.infolist()}
    metadata: dict[str, Any] = {}
    for name, info in members.items():
        if name.endswith(".dist-info/METADATA") and info.file_size <= _LARGEST_MEMBER:
            metadata |= _metadata(archive.read(info).decode(errors="replace"))
    sums = {
        name: f"{info.CRC:08x}{info.file_size:x}"
        for name, info in members.items()
        if is_indexed_member(name, info.file_size, configs=configs)
    }
    if sum(members[name].file_size for name in sums) > _LARGEST_UNPACKED:
        raise ValueError(f"the wheel unpacks to more than {_LARGEST_UNPACKED} bytes")
    return Archive(sums, lambda name: archive.read(members[name]).decode(errors="replace"), metadata)


def _open_sdist(data: bytes, *, configs: bool) -> Archive:
    """Return the members of an sdist, below its folder and `src/` or `python/`."""
    texts: dict[str, bytes] = {}
    information, requirements = b"", b""
    unpacked = 0
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for member in archive:
            unpacked += member.size
            if unpacked > _LARGEST_UNPACKED:
                raise ValueError(f"the sdist unpacks to more than {_LARGEST_UNPACKED} bytes")
            name = re.sub(r"^(src|python)/", "", member.name.partition("/")[2])
            if not member.isreg() or member.size > _LARGEST_MEMBER:
                continue
            if is_indexed_member(name, member.size, configs=configs):
                texts[name] = archive.extractfile(member).read()  # type: ignore[union-attr]
            elif name == "PKG-INFO":
                information = archive.extractfile(member).read()  # type: ignore[union-attr]
            elif name.endswith(".egg-info/requires.txt"):
                requirements = archive.extractfile(member).read()  # type: ignore[union-attr]
    metadata = _metadata(information.decode(errors="replace"))
    metadata["requires"] = metadata["requires"] or _egg_requirements(requirements.decode(errors="replace"))
    sums = {name: f"{zlib.crc32(text):08x}{len(text):x}" for name, text in texts.items()}
    return Archive(sums, lambda name: texts[name].decode(errors="replace"), metadata)


def is_indexed_member(name: str, size: int, *, configs: bool = False) -> bool:
    """Return whether a member is a module of a package or, with `configs`, a YAML config file.

    >>> is_indexed_member("trl/a.py", 1), is_indexed_member("trl/tests/a.py", 1), is_indexed_member("setup.py", 1)
    (True, False, False)
    """
    if size > _LARGEST_MEMBER or _SKIPPED.search(name) or "/" not in name:
        return False
    return name.endswith(".py") or (configs and "/config/" in name and name.endswith(".yaml"))


def _metadata(text: str) -> dict[str, Any]:
    message = email.message_from_string(text.partition("\n\n")[0] + "\n\n")
    return {
        "requires": message.get_all("Requires-Dist") or [],
        "python": message.get("Requires-Python") or "",
    }


def _egg_requirements(text: str) -> list[str]:
    r"""Return the lines of an sdist's requires.txt as those of METADATA.

    >>> _egg_requirements("a>1\n[dev:python_version<'3.9']\nb")
    ['a>1', 'b; python_version<\'3.9\' and extra == "dev"']
    """
    lines, marker = [], ""
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("["):
            extra, _, condition = line.strip("[]").partition(":")
            marker = " and ".join(filter(None, (condition, f'extra == "{extra}"' if extra else "")))
        else:
            lines.append(f"{line}; {marker}" if marker else line)
    return lines


def _download(client: httpx.Client, release: ReleaseFiles, limit: int) -> bytes:
    with client.stream("GET", release.url) as answer:
        answer.raise_for_status()
        data = bytearray()
        for part in answer.iter_bytes():
            data += part
            if len(data) > limit:
                raise ValueError(f"{release.url}: more than {limit} bytes")
    if release.sha256 not in {"", hashlib.sha256(data).hexdigest()}:
        raise ValueError(f"{release.url}: its hash differs from the index's")
    return bytes(data)


class _RangeFile(io.RawIOBase):
    """A seekable file that is read in blocks by HTTP range requests."""

    def __init__(self, client: httpx.Client, url: str, size: int) -> None:
        self._client, self._url, self._size, self._at = client, url, size, 0
        self._blocks: dict[int, bytes] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        number = self._at // _BLOCK
        if number not in self._blocks:
            last = min((number + 1) * _BLOCK, self._size) - 1
            header = {"Range": f"bytes={number * _BLOCK}-{last}"}
            answer = self._client.get(self._url, headers=header)
            answer.raise_for_status()
            if answer.status_code != httpx.codes.PARTIAL_CONTENT:
                raise ValueError(f"{self._url}: the server does not send ranges")
            if len(self._blocks) >= 16:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[number] = answer.content
        start = self._at - number * _BLOCK
        data = self._blocks[number][start : start + len(buffer)]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
