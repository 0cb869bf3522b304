"""The one door for files that others wrote: regular files up to a size, and nothing that could be waited for.

Standard library alone, since it travels with doctor's facts to machines that have nothing else. What is refused is an
OSError, so that whoever reads a file that may be missing says of one that is no file what it says of a missing one.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from io import BufferedReader
    from pathlib import Path
    from typing import Any

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# The most that a file of each kind holds; the largest seen of each is a tenth of it or less.
WORD = 64 * KIB
METADATA = 4 * MIB
SOURCE = 8 * MIB
LIST = 64 * MIB
STORE = GIB
# What the values of a document of JSON take beside its bytes, by the signs that each of them needs.
_TAKES = {"{": 240, "[": 72, ",": 64, ":": 64}
MOST_TAKEN = GIB // 2
_MOST_PARTS = 64


class RefusedError(OSError):
    """Raised for what is no regular file of the size and in the place that was expected; `strerror` says why."""

    def __init__(self, why: str, path: object = None) -> None:
        super().__init__(errno.EINVAL, why, os.fspath(path) if isinstance(path, (str, os.PathLike)) else None)

    def __str__(self) -> str:
        return str(self.strerror)


class TooMuchError(ValueError):
    """Raised for a document whose values take more memory than any that is known; one line that says so."""


def opened(path: Path, *, inside: Path | None = None, pipes: bool = False) -> BufferedReader:
    """Opens a regular file without waiting for anybody, whatever has been put in its place.

    Args:
        path: The file. Links are followed.
        inside: The folder in which it must lie in the end, links resolved; None for anywhere.
        pipes: Whether a pipe will do, or /dev/null: of what the user named, since a shell's `<(…)` is one.

    Raises:
        OSError: It is not there, is no such file (RefusedError), or can't be read.
    """
    try:
        place = os.path.realpath(path) if inside is not None else os.fspath(path)
        if inside is not None and not _within(place, inside):
            raise RefusedError("a link that leads out of the folder", path)
        _check(os.stat(place), path, pipes=pipes)  # noqa: PTH116 - before it is opened: opening a device may do something
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(place, flags | (os.O_NOFOLLOW if inside is not None else 0))
    except ValueError as error:  # a NUL or half a surrogate in the name
        raise RefusedError(f"no name of a file: {error}") from None
    try:
        _check(os.fstat(descriptor), path, pipes=pipes)  # it may be another one by now
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read(path: Path, most: int, *, inside: Path | None = None, pipes: bool = False) -> bytes:
    """The whole of a file.

    Args:
        path: The file.
        most: So many bytes at the most; a larger one is refused.
        inside: See `opened`.
        pipes: See `opened`.

    Raises:
        OSError: As `opened`, and where it is larger (RefusedError).
    """
    with opened(path, inside=inside, pipes=pipes) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size + 1) if size <= most else b""
        # A file can grow while it is read; a pipe and some file systems do not know their sizes.
        while size <= most and size < len(data) <= most and (more := file.read(MIB)):
            data, size = data + more, len(data)
    if size > most or len(data) > most:
        raise RefusedError(f"larger than {_size(most)}, which no such file is", path)
    return data


def head(path: Path, most: int, *, inside: Path | None = None) -> bytes:
    """The first bytes of a file, however large it is; raises what `opened` raises."""
    with opened(path, inside=inside) as file:
        return file.read(most)


def tail(path: Path, most: int) -> bytes:
    """The last bytes of a file, however large it is; raises what `opened` raises."""
    with opened(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most)


def text(path: Path, most: int, *, inside: Path | None = None, pipes: bool = False) -> str:
    """The whole of a file as text, what is no UTF-8 replaced; raises what `read` raises."""
    data = read(path, most, inside=inside, pipes=pipes).decode("utf-8", "replace")
    return data.replace("\r\n", "\n").replace("\r", "\n")


def parsed(document: bytes | str) -> Any:
    """What a document of JSON holds: three bytes of one can make a list of seventy, so its values are counted before.

    Raises:
        ValueError: It is none, nested too deep, or holds too many values (TooMuchError).

    >>> parsed('{"steps": [1, 2]}')
    {'steps': [1, 2]}
    """
    import json  # late: who only opens files needs none of it

    bounded(document)
    try:
        return json.loads(document)
    except RecursionError:
        raise ValueError("nested too deep") from None


def parsed_toml(document: str) -> dict[str, Any]:
    """What a document of TOML holds; tomllib takes time with the square of a key's parts.

    Raises:
        ValueError: It is none, nested too deep, or has a key that no document has.
    """
    import tomllib  # late: not there in a node's Python 3.10, which reads none

    if re.search(rf"(?:\.[ \t]*[A-Za-z0-9_\"'-]{{1,60}}[ \t]*){{{_MOST_PARTS}}}", document):
        raise TooMuchError(f"a key with more than {_MOST_PARTS} parts")
    try:
        return tomllib.loads(document)
    except RecursionError:
        raise ValueError("nested too deep") from None


def bounded(document: bytes | str, start: int = 0) -> None:
    """Refuses what would take too much memory as values; signs within texts count, too.

    Args:
        document: JSON, or what begins with it.
        start: Where it begins.

    Raises:
        TooMuchError: It would.
    """
    if len(document) - start <= MOST_TAKEN // max(_TAKES.values()):
        return
    taken = 0
    for sign, each in _TAKES.items():
        if isinstance(document, str):
            taken += each * document.count(sign, start)
        else:
            taken += each * document.count(sign.encode(), start)
    if taken > MOST_TAKEN:
        raise TooMuchError("more values than any document has")


def _check(found: os.stat_result, path: Path, *, pipes: bool) -> None:
    if pipes and (stat.S_ISFIFO(found.st_mode) or _is_null(found)):
        return
    if not stat.S_ISREG(found.st_mode):
        raise RefusedError("not a regular file", path)
    if found.st_dev in _of_the_kernel():
        raise RefusedError("not a file but something that the kernel makes up", path)


def _is_null(found: os.stat_result) -> bool:
    """Whether it is /dev/null, which is read to its end at once and does nothing."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 3)


@functools.cache
def _of_the_kernel() -> frozenset[int]:
    """The file systems in which regular files have no end, wait, or hold what belongs to a process."""
    found = set()
    for place in ("/proc", "/sys"):
        try:
            found.add(os.stat(place).st_dev)  # noqa: PTH116 - as text
        except OSError:
            continue
    try:
        return frozenset(found - {os.stat("/").st_dev})  # noqa: PTH116 - where nothing is mounted on them
    except OSError:
        return frozenset(found)


def _within(place: str, folder: Path) -> bool:
    root = os.path.realpath(folder)
    return place.startswith(root if root.endswith(os.sep) else root + os.sep)


def _size(most: int) -> str:
    return f"{most // MIB} MiB" if most >= MIB else f"{most // KIB} KiB" if most >= KIB else f"{most} bytes"
