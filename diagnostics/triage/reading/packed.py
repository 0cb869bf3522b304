"""Logs that are packed: gzip, bzip2, xz and zip, as long as what comes out of them can be a log."""

from __future__ import annotations

import bz2
import importlib
import io
import lzma
import os
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, Protocol

from diagnostics.safe_io import GIB, MIB
from diagnostics.triage.reading.kinds import NoLogError

if TYPE_CHECKING:
    from collections.abc import Callable

# Logs shrink to a tenth or a hundredth; from here on a file that unpacks to so many times its size is none.
BOMB_BYTES, BOMB_TIMES = 256 * MIB, 400
MOST_UNPACKED = 64 * GIB
# Files are joined out of parts by rotation and by parallel packers; parts of less than this are no log's.
_MOST_SMALL, _SMALL = 10_000, 512
_MEMORY = 256 * MIB
_PIECE = 1 << 16
# Of a zip: what its list of files may take, and where that list ends.
MOST_FILES, _MOST_LIST = 10_000, 4 * MIB
_END = b"PK\x05\x06"
_METHODS = (
    zipfile.ZIP_STORED,
    zipfile.ZIP_DEFLATED,
    zipfile.ZIP_BZIP2,
)  # LZMA asks for the memory that it likes


def _zstd() -> Any:
    """The module that unpacks zstd: of Python from 3.14 on, else one with the same manners, if it is installed."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


_ZSTD = _zstd()
_ZSTD_ERROR: type[Exception] = zlib.error if _ZSTD is None else _ZSTD.ZstdError
ERRORS = (
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    NotImplementedError,
    struct.error,
)


class Stream(Protocol):
    """What blocks are read from."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes, none at the end."""


class _Gzip:
    """`zlib` with the manners of `bz2` and `lzma`."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._zlib.unconsumed_tail

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)


# By the first bytes.
PACKERS: dict[bytes, tuple[str, Callable[[], Any]]] = {
    b"\x1f\x8b": ("gzip", _Gzip),
    b"BZh": ("bzip2", bz2.BZ2Decompressor),
    b"\xfd7zXZ\0": ("xz", lambda: lzma.LZMADecompressor(memlimit=_MEMORY)),
}
if _ZSTD is not None:
    PACKERS[b"\x28\xb5\x2f\xfd"] = ("zstd", _ZSTD.ZstdDecompressor)


class Unpacked:
    """A packed stream, unpacked as far as it can be a log."""

    def __init__(self, raw: io.BufferedReader, kind: str, unpacker: Callable[[], Any]) -> None:
        self._raw, self._kind, self._make = raw, kind, unpacker
        self._unpacker, self._rest = unpacker(), b""
        self._packed = self._out = self._parts = 0
        self._ended = False

    def read(self, size: int, /) -> bytes:
        """At most so many bytes, none at the end.

        Raises:
            EOFError: It is cut off.
            NoLogError: It unpacks without end.
            zlib.error, lzma.LZMAError, OSError: It is damaged.
        """
        while not self._ended:
            if self._unpacker.eof and not self._next():
                break
            data, self._rest = self._rest, b""
            if not data and self._unpacker.needs_input:
                data = self._more()
            out: bytes = self._unpacker.decompress(data, size)
            if out:
                self._count(len(out))
                return out
            if not data and self._unpacker.needs_input and not self._unpacker.eof:
                raise EOFError
        return b""

    def _more(self) -> bytes:
        data = self._raw.read(_PIECE)
        self._packed += len(data)
        return data

    def _next(self) -> bool:
        """Goes on with the next part, if there is one: behind the end of one there may be another, and zeros."""
        rest: bytes = self._unpacker.unused_data.lstrip(b"\0")
        while not rest:
            more = self._more()
            if not more:
                self._ended = True
                return False
            rest = more.lstrip(b"\0")
        self._parts += 1
        if self._parts > _MOST_SMALL and self._out < self._parts * _SMALL:
            raise NoLogError(
                f"a {self._kind} file of {self._parts} parts with next to nothing in them is no log"
            )
        self._unpacker, self._rest = self._make(), rest
        return True

    def _count(self, length: int) -> None:
        self._out += length
        if self._out > MOST_UNPACKED or (
            self._out > BOMB_BYTES and self._out > BOMB_TIMES * max(1, self._packed)
        ):
            raise NoLogError(
                f"a {self._kind} file of which more than {BOMB_TIMES} times its size comes is no log; read to"
                f" {self._out >> 20} MiB"
            )


def files_of(raw: io.BufferedReader) -> list[str]:
    """The files in a zip, by name.

    Raises:
        NoLogError: It has more of them, or more in them, than logs have.
        zipfile.BadZipFile, OSError: It is none, or damaged.
    """
    size = raw.seek(0, os.SEEK_END)
    raw.seek(max(0, size - (1 << 16) - 22))
    _, end, fields = raw.read().rpartition(_END)
    if end and len(fields) >= 18:
        count, length = struct.unpack_from("<HI", fields, 6)
        if count > MOST_FILES or length > _MOST_LIST:
            raise NoLogError(
                f"a zip of more than {MOST_FILES} files is no run's; unpack it, and name the folder"
            )
    raw.seek(0)
    with zipfile.ZipFile(raw) as archive:
        found = [info for info in archive.infolist() if info.filename and not info.filename.endswith("/")]
    if len(found) > MOST_FILES:
        raise NoLogError(f"a zip of more than {MOST_FILES} files is no run's; unpack it, and name the folder")
    whole = sum(info.file_size for info in found)
    if whole > MOST_UNPACKED or (whole > BOMB_BYTES and whole > BOMB_TIMES * max(1, size)):
        raise NoLogError(
            f"a zip of which more than {BOMB_TIMES} times its size would come is no log; not read"
        )
    return list(dict.fromkeys(info.filename for info in found))


def file_of(raw: io.BufferedReader, name: str) -> io.BufferedReader:
    """One of the files in a zip; it gives no more bytes than the zip's list says.

    Raises:
        NoLogError: It can't be unpacked here.
        zipfile.BadZipFile, OSError: It is damaged.
    """
    archive = zipfile.ZipFile(raw)
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise NoLogError(f"{name}: no longer in the zip") from None
    if info.flag_bits & 1:
        raise NoLogError("is encrypted; unpack it first")
    if info.compress_type not in _METHODS:
        raise NoLogError(
            f"is packed by method {info.compress_type} of zip, which is not read; unpack it first"
        )
    return io.BufferedReader(archive.open(info))  # type: ignore[arg-type]  # it is a RawIOBase in all but name
