"""The Python files of a released wheel, without its compiled ones: 2 MB of 300.

A wheel is a zip file: its directory stands at the end, and what is wanted is read by a few HTTP range requests. The
files are laid out as an installer would, RECORD included, so that each can be compared with what the release says.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import re
import shutil
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from diagnostics.matrix.build import sources

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

MARKER = "whole.json"
_LEFT_OUT = re.compile(r"\.so(\.[0-9.]+)?$|/$")
_LARGEST = 2_000_000  # bytes of a member in the wheel: none that Python reads is larger
_GAP = 200_000  # unwanted bytes between two wanted members that cost less than another request
_LOCAL_HEADER = 26  # where a member's own header has the lengths of its name and its extra field
_TIMEOUT_S = 60.0


def releases(distribution: str, first: str, environ: Mapping[str, str]) -> list[str]:
    """Returns the final and post releases that have a wheel for x86_64 Linux, from `first` on, oldest first.

    Raises:
        WheelError: the index can't be asked.
    """
    found = set()
    for name in sources.wheel_names(distribution, environ):
        version = parse_wheel_filename(name)[1]
        if version >= Version(first) and not version.is_prerelease:
            found.add(version)
    return [str(version) for version in sorted(found)]


def matching(every: Sequence[str], globs: Sequence[str], package: str) -> list[str]:
    """Returns the releases that one of the patterns names, all of them where there is no pattern.

    Raises:
        WheelError: none is called so.
    """
    chosen = [name for name in every if not globs or any(fnmatch.fnmatch(name, glob) for glob in globs)]
    if not chosen:
        raise sources.WheelError(f"no release of {package} is called {', '.join(globs)}; newest: {every[-1]}")
    return chosen


def unpack(distribution: str, version: str, folder: Path, *, cache: Path, environ: Mapping[str, str]) -> Path:
    """Returns a folder `site-packages` with the Python files of that release, fetched unless they are there.

    Raises:
        WheelError: there is no such wheel, or it can't be read now.
    """
    wheel = sources.find_wheel(distribution, version, cache=cache, environ=environ)
    target = folder / version / "site-packages"
    marker = target / MARKER
    if marker.exists() and json.loads(marker.read_text(encoding="utf-8")) == wheel.sha256:
        return target
    shutil.rmtree(target, ignore_errors=True)
    try:
        for name, data in _members(wheel.address):
            path = _inside(target, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    except (sources.WheelError, ModuleNotFoundError):
        raise
    except (
        Exception
    ) as error:  # requests, zipfile and remotezip raise a dozen kinds; all mean: not readable now
        raise sources.WheelError(f"{distribution} {version}: {type(error).__name__}: {error}") from error
    marker.write_text(json.dumps(wheel.sha256), encoding="utf-8")
    return target


def _inside(target: Path, name: str) -> Path:
    path = target / name
    if not path.resolve().is_relative_to(target.resolve()):
        raise sources.WheelError(f"the wheel has a member called {name!r}, outside of its folder")
    return path


def _members(address: str) -> Iterator[tuple[str, bytes]]:
    """Yields (name, content) of each wanted member."""
    if "://" not in address:
        with zipfile.ZipFile(address) as archive:
            for info in archive.infolist():
                if _wanted(info):
                    yield info.filename, _bounded(archive, info)
        return
    import remotezip
    import requests

    with remotezip.RemoteZip(address, timeout=_TIMEOUT_S) as archive:
        spans = _spans(archive.infolist(), archive.start_dir)
    for start, end, members in spans:
        asked = {"Range": f"bytes={start}-{end - 1}"}
        answer = requests.get(address, headers=asked, timeout=_TIMEOUT_S)
        answer.raise_for_status()
        data = answer.content if answer.status_code == requests.codes.partial else answer.content[start:end]
        for info in members:
            yield info.filename, _content(data[info.header_offset - start :], info)


def _wanted(info: zipfile.ZipInfo) -> bool:
    return (
        not _LEFT_OUT.search(info.filename)
        and info.compress_size < _LARGEST
        and info.file_size < 32 * _LARGEST
    )


def _bounded(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """A member's content, no more of it than the wheel's directory says."""
    with archive.open(info) as file:
        return file.read(info.file_size)


def _spans(infos: Sequence[zipfile.ZipInfo], directory: int) -> list[tuple[int, int, list[zipfile.ZipInfo]]]:
    """Returns (start, end, wanted members) of the pieces of a wheel to ask for; its directory begins at `directory`."""
    inorder = sorted(infos, key=lambda info: info.header_offset)
    ends = [*(info.header_offset for info in inorder[1:]), directory]
    spans: list[tuple[int, int, list[zipfile.ZipInfo]]] = []
    for info, end in zip(inorder, ends, strict=True):
        if not _wanted(info):
            continue
        if spans and info.header_offset - spans[-1][1] <= _GAP:
            spans[-1] = (spans[-1][0], end, [*spans[-1][2], info])
        else:
            spans.append((info.header_offset, end, [info]))
    return spans


def _content(data: bytes, info: zipfile.ZipInfo) -> bytes:
    """Returns a member's content; `data` begins with its own header.

    Raises:
        WheelError: it is not what the wheel's directory says.
    """
    begin = _LOCAL_HEADER + 4 + sum(struct.unpack_from("<HH", data, _LOCAL_HEADER))
    raw = data[begin : begin + info.compress_size]
    plain = {
        zipfile.ZIP_STORED: bytes,
        zipfile.ZIP_DEFLATED: lambda part: zlib.decompressobj(-zlib.MAX_WBITS).decompress(
            part, info.file_size + 1
        ),
    }
    found = bytes(plain[info.compress_type](raw))
    if zlib.crc32(found) != info.CRC:
        raise sources.WheelError(f"{info.filename}: its checksum is not the one in the wheel's directory")
    return found


def ranges(chosen: Sequence[str], all_releases: Sequence[str]) -> str:
    """Names releases in short: runs of neighbours by their ends.

    >>> ranges(["0.6.0", "0.6.1", "0.7.0"], ["0.6.0", "0.6.1", "0.6.2", "0.7.0"])
    '0.6.0 to 0.6.1, 0.7.0'
    """
    parts = []
    for inside, run in itertools.groupby(all_releases, key=set(chosen).__contains__):
        names = list(run)
        if inside:
            parts.append(names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}")
    return ", ".join(parts)
