"""List the releases of a package on pip's indexes, and read the source files of their wheels and sdists.

From a large wheel only the needed blocks are fetched, by HTTP range requests. Nothing is installed or run, and a large
file in an archive is not read. `list_releases` returns the releases, and `open_release` the wheel or sdist of one as an
`Archive`.
"""

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
from datetime import datetime
from functools import lru_cache
from typing import Any

import httpx
import msgspec
from packaging.utils import parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from diagnostics import UserError
from diagnostics.api_index.packages import PREFERRED_FILES
from diagnostics.output.redact import truncate

_BLOCK = 1 << 20
_SMALL = 12_000_000
_LARGEST_MEMBER = 8_000_000
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PURELIB = re.compile(r"^[\w.+!-]+\.data/(?:purelib|platlib)/")
_JSON = "application/vnd.pypi.simple.v1+json"
# The suffix of compiled modules, such as `lib.cpython-311-x86_64-linux-gnu.so`.
_COMPILED = re.compile(r"(?:\.(?:cpython-|abi3)[\w-]*)?\.so$")


@dataclass(frozen=True)
class ReleaseFile:
    """The file to read for one release: a pure or x86-64 Linux wheel, else the sdist, else another Linux wheel.

    Attributes:
        url: Address of the file.
        sha256: Hash of the file; empty if the index has none.
        size: Size of the file in bytes; 0 if the index has none.
        day: The day of the first upload; empty if the index does not state it for one of the files.
    """

    version: str
    url: str
    sha256: str
    size: int
    day: str
    requires_python: str


@dataclass
class Archive:
    """An opened wheel or sdist: the chosen files, how to read them, and the metadata."""

    checksums: dict[str, str]
    """Path in site-packages -> checksum and size as one text; `compiled` for a compiled module."""
    read: Callable[[str], str]
    metadata: dict[str, Any] = field(default_factory=dict)
    too_large: list[str] = field(default_factory=list)
    """Files that are not read because of their size."""


def connect() -> httpx.Client:
    """Return an HTTP client for the package index."""
    certificates = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    headers = {"Accept-Encoding": "identity"}
    return httpx.Client(timeout=120, follow_redirects=True, verify=certificates, headers=headers)


def list_releases(
    client: httpx.Client,
    package: str,
    *,
    since_day: str = "",
    since: str = "0",
    environ: Mapping[str, str] = os.environ,
) -> list[ReleaseFile]:
    """Return the final and post releases of a package since a release and a day, lowest version first.

    Yanked files are left out, and releases without a pure or Linux wheel or an sdist. With `since_day`, releases with a
    file whose upload day the index does not state are left out, too.

    Raises:
        UserError: An index cannot be read.
    """
    by_version: dict[Version, list[_ListedFile]] = {}
    for item in _listed_files(client, package, environ):
        version = _version_of(item.filename)
        if version is not None and not version.is_prerelease and not item.yanked:
            by_version.setdefault(version, []).append(item)
    releases = []
    for version in sorted(item for item in by_version if item >= Version(since)):
        items = by_version[version]
        day = min(item.upload_time.date().isoformat() if item.upload_time else "" for item in items)
        chosen = min(items, key=lambda item: (_preference(item.filename), item.filename))
        sha256 = chosen.hashes.get("sha256", "")
        if day >= since_day and _preference(chosen.filename) < len(PREFERRED_FILES):
            release = ReleaseFile(
                version=str(version),
                url=chosen.url,
                sha256=sha256 if _SHA256.fullmatch(sha256) else "",  # a cache names a folder by the hash
                size=chosen.size or 0,
                day=day,
                requires_python=chosen.requires_python or "",
            )
            releases.append(release)
    return releases


class _ListedFile(msgspec.Struct, rename="kebab"):
    """A file as the index lists it."""

    filename: str
    url: str
    hashes: dict[str, str] = {}
    yanked: bool | str = False
    size: int | None = None
    upload_time: datetime | None = None
    requires_python: str | None = None


class _Listing(msgspec.Struct):
    """The answer of the index about a package."""

    files: list[_ListedFile]


def _listed_files(client: httpx.Client, package: str, environ: Mapping[str, str]) -> list[_ListedFile]:
    """Return the files of a package on pip's indexes; some may lack it, but one that cannot be read is a UserError."""
    first = environ.get("PIP_INDEX_URL") or environ.get("UV_DEFAULT_INDEX") or "https://pypi.org/simple"
    files: list[_ListedFile] = []
    for index in (first, *environ.get("PIP_EXTRA_INDEX_URL", "").split()):
        try:
            url = f"{index.rstrip('/')}/{package}/"
            listing = _fetch(client, url, {"Accept": _JSON})
            files += msgspec.json.decode(listing, type=_Listing).files
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None
            if status != httpx.codes.NOT_FOUND:
                raise UserError(f"the index cannot be read for {package}: {error_line(error)}") from error
    return files


def error_line(error: Exception) -> str:
    """Return an error on one line of at most 300 characters, without the user and password of an address in it."""
    text = re.sub(r"//[^/@\s]+@", "//", " ".join(str(error).split()))
    return truncate(f"{type(error).__name__}: {text}", 300)


def _preference(filename: str) -> int:
    """Return the position of a file name's first form in `PREFERRED_FILES`; their number if it has none."""
    matches = (at for at, pattern in enumerate(PREFERRED_FILES) if re.search(pattern, filename))
    return next(matches, len(PREFERRED_FILES))


def _version_of(filename: str) -> Version | None:
    try:
        parse = parse_wheel_filename if filename.endswith(".whl") else parse_sdist_filename
        return parse(filename)[1]
    except ValueError:
        return None


def open_release(client: httpx.Client, release: ReleaseFile, includes: Callable[[str], bool]) -> Archive:
    """Open the wheel or sdist of a release, for the files that `includes` chooses by their path.

    The hash of a wheel that is read by range requests is not checked.

    Raises:
        ValueError: The hash of the file differs from the index's.
        httpx.HTTPError: The file cannot be fetched.
        Exception: Other errors for a damaged file or answer.
    """
    if not release.url.endswith(".whl"):
        return _open_sdist(_download(client, release), includes)
    size = release.size or int(client.head(release.url).raise_for_status().headers["Content-Length"])
    source: Any = io.BufferedReader(_RangeFile(client, release.url, size), 1 << 16)
    if size <= _SMALL:
        source = io.BytesIO(_download(client, release))
    return open_wheel(zipfile.ZipFile(source), includes)


def open_wheel(archive: zipfile.ZipFile, includes: Callable[[str], bool]) -> Archive:
    """Return the chosen members of a wheel as an Archive; a compiled module is named `pyarrow/lib.so`, and is empty."""

    def read(name: str) -> str:
        return "" if name.endswith(".so") else archive.read(members[name]).decode(errors="replace")

    members = {_COMPILED.sub(".so", _PURELIB.sub("", info.filename)): info for info in archive.infolist()}
    opened = Archive({}, read)
    for name, info in members.items():
        if re.fullmatch(r"[^/]+\.dist-info/METADATA", name):
            opened.metadata = _metadata(read(name))
        elif not includes(name):
            continue
        elif name.endswith(".so"):
            opened.checksums[name] = "compiled"
        elif info.file_size > _LARGEST_MEMBER:
            opened.too_large.append(name)
        else:
            opened.checksums[name] = f"{info.CRC:08x}{info.file_size:x}"
    return opened


def _open_sdist(data: bytes, includes: Callable[[str], bool]) -> Archive:
    """Return the chosen members of an sdist, below its folder and `src/` or `python/`."""
    texts: dict[str, bytes] = {}
    opened = Archive({}, lambda name: texts[name].decode(errors="replace"))
    information, requirements = b"", b""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for member in filter(tarfile.TarInfo.isreg, archive):
            name = re.sub(r"^(src|python)/", "", member.name.partition("/")[2])
            is_chosen = includes(name) and not name.endswith(".so")
            if member.size > _LARGEST_MEMBER:
                opened.too_large += [name] if is_chosen else []
                continue
            text = archive.extractfile(member).read()  # type: ignore[union-attr]
            if is_chosen:
                texts[name], opened.checksums[name] = text, f"{zlib.crc32(text):08x}{len(text):x}"
            elif name == "PKG-INFO":
                information = text
            elif name.endswith(".egg-info/requires.txt"):
                requirements = text
    opened.metadata = _metadata(information.decode(errors="replace"))
    opened.metadata["requires"] = opened.metadata["requires"] or _egg_requirements(
        requirements.decode(errors="replace")
    )
    return opened


def _metadata(text: str) -> dict[str, Any]:
    """Return the requirements and the Python constraint in METADATA or PKG-INFO."""
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


def _download(client: httpx.Client, release: ReleaseFile) -> bytes:
    """Return the bytes of a release's file; raise ValueError if their hash differs from the index's."""
    data = _fetch(client, release.url)
    if release.sha256 not in {"", hashlib.sha256(data).hexdigest()}:
        raise ValueError(f"{release.url}: its hash differs from the index's")
    return data


def _fetch(client: httpx.Client, url: str, headers: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes at a URL.

    Raises:
        httpx.HTTPError: The server cannot be reached, or answers with an error.
        ValueError: The answer is not the requested range.
    """
    answer = client.get(url, headers=headers).raise_for_status()
    if headers and "Range" in headers and answer.status_code != httpx.codes.PARTIAL_CONTENT:
        raise ValueError(f"{url}: the server does not send ranges")
    return answer.content


class _RangeFile(io.RawIOBase):
    """A seekable file that is read in blocks by HTTP range requests."""

    def __init__(self, client: httpx.Client, url: str, size: int) -> None:
        self._client, self._url, self._size, self._at = client, url, size, 0
        self._block = lru_cache(16)(self._fetch_block)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def _fetch_block(self, number: int) -> bytes:
        last = min((number + 1) * _BLOCK, self._size) - 1
        return _fetch(self._client, self._url, {"Range": f"bytes={number * _BLOCK}-{last}"})

    def readinto(self, buffer: Any) -> int:
        number, start = divmod(self._at, _BLOCK)
        data = self._block(number)[start : start + len(buffer)]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
