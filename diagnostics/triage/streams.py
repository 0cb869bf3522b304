"""Read a log as blocks of whole lines: text, UTF-16, gzip, bzip2, xz, zstd, or a file in a zip."""

from __future__ import annotations

import bz2
import codecs
import importlib
import io
import lzma
import os
import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from diagnostics import safe_io
from diagnostics.safe_io import GIB, MIB

BLOCK = 1 << 20
# A longer line is read in pieces, which overlap.
LONGEST_LINE = 2 << 20
_OVERLAP = 1 << 12
# Bytes of each block by which text is recognized.
_SAMPLE = 1 << 14
# Logs compress to 1/10 or 1/100: a larger file with a higher ratio is no log.
BOMB_BYTES, BOMB_RATIO = 256 * MIB, 400
MAX_UNPACKED = 64 * GIB
# Log rotation and parallel compressors join members. Many tiny members are no log.
_MAX_MEMBERS, _MIN_MEMBER_BYTES = 10_000, 512
_XZ_MEMORY = 256 * MIB
_PIECE = 1 << 16
MAX_ZIP_FILES, _MAX_ZIP_INDEX = 10_000, 4 * MIB
_ZIP, _ZIP_END = b"PK\x03\x04", b"PK\x05\x06"
# LZMA in a zip has no memory limit.
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
_UNPACK_ERRORS: tuple[type[Exception], ...] = (
    zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError, struct.error,
)  # fmt: skip
# Files that are recognized by their first bytes and not read.
_UNREAD = {
    b"\x28\xb5\x2f\xfd": "zstd, which Python before 3.14 does not unpack by itself: pip install backports.zstd, or"
    " `zstd -dc FILE | grpo-doctor triage -`",
    b"\x04\x22\x4d\x18": "LZ4, which is not unpacked here: `lz4 -dc FILE | grpo-doctor triage -`",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive, which is not unpacked here: unpack it, and name the folder",
    b"Rar!\x1a\x07": "a RAR archive, which is not unpacked here: unpack it, and name the folder",
    _ZIP_END: "an empty zip",
    b"\x7fELF": "a program or a core dump, no log",
    b"PAR1": "a Parquet file, no log",
    b"%PDF-": "a PDF, no log",
    b"\x89PNG": "a picture, no log",
}
# Compressed logs that need another tool; reading them says which one.
_NEEDS_TOOL = (b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")
# Control characters that no program prints to a log.
_CONTROLS = bytes(number for number in (*range(32), 127) if chr(number) not in "\a\b\t\n\v\f\r\x1b")
# A file that was truncated while it was written has a hole before later text.
_HOLE = re.compile(rb"\0{16,}")
_UTF16_SAMPLE, _MIN_UTF16, _UTF16_ZEROS = 512, 16, 0.6
_MAX_CONTROLS, _MAX_REPLACED = 0.02, 0.5


class SourceError(ValueError):
    """Raised when a log can't be found or read; the message is one line for the user."""


class NoLogError(ValueError):
    """Raised for a file that is no log, or can't be unpacked; the message does not have the file's name."""


@dataclass(frozen=True)
class LogSource:
    """One log; `path` is None for standard input.

    Attributes:
        member: Its name in the zip that `path` is; empty where the file is the log.
        inside: The folder in which it was found; links that lead out of it are refused.
    """

    name: str
    path: Path | None
    member: str = ""
    inside: Path | None = None

    def blocks(self) -> Iterator[bytes]:
        """Read the log once, in bounded memory: blocks that end at the end of a line.

        Raises:
            SourceError: It can't be read, is no text, is damaged, or unpacks to too many bytes.
        """
        try:
            if self.path is None:
                yield from _text_blocks(io.BufferedReader(_StandardInput(sys.stdin.buffer)))
                return
            with safe_io.open_regular(self.path, inside=self.inside, pipes=True) as raw:
                yield from _text_blocks(_open_zip_member(raw, self.member) if self.member else raw)
        except EOFError:
            raise SourceError(f"{self.name}: the packed file is cut off; read as far as it goes") from None
        except NoLogError as error:
            raise SourceError(f"{self.name}: {error}") from None
        except _READ_ERRORS as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SourceError(f"{self.name}: cannot be read: {reason}") from None


def looks_like_log(path: Path) -> bool:
    """Whether a file begins like a log. True also for an unreadable file: the problem is reported on reading."""
    try:
        with safe_io.open_regular(path) as raw:
            head = raw.peek(4096)[:4096]
            if unpacker := _unpacker(raw, head):
                head = next(unpacker.chunks(4096), b"")
    except (EOFError, NoLogError):
        return True
    except _READ_ERRORS:
        return True
    return bool(utf16(head)) or head.startswith(_NEEDS_TOOL) or is_text(head) is not False


def zip_members(path: Path) -> list[str]:
    """Return the names of the files in a zip; none if the file is no zip.

    Raises:
        NoLogError: It has more files, or more bytes, than the logs of a run have.
    """
    try:
        with safe_io.open_regular(path) as raw:
            return _zip_members(raw) if raw.peek(4).startswith(_ZIP) else []
    except _UNPACK_ERRORS as error:
        raise NoLogError(str(error)) from None
    except OSError:
        return []  # reported on reading


def _zip_members(raw: io.BufferedReader) -> list[str]:
    too_many = f"a zip of more than {MAX_ZIP_FILES} files is no run's; unpack it, and name the folder"
    size = raw.seek(0, os.SEEK_END)
    raw.seek(max(0, size - (1 << 16) - 22))
    _, end, fields = raw.read().rpartition(_ZIP_END)
    if end and len(fields) >= 18:
        count, length = struct.unpack_from("<HI", fields, 6)
        if count > MAX_ZIP_FILES or length > _MAX_ZIP_INDEX:
            raise NoLogError(too_many)
    raw.seek(0)
    with zipfile.ZipFile(raw) as archive:
        members = [info for info in archive.infolist() if info.filename and not info.filename.endswith("/")]
    if len(members) > MAX_ZIP_FILES:
        raise NoLogError(too_many)
    if _is_bomb(sum(info.file_size for info in members), size):
        raise NoLogError(
            f"a zip of which more than {BOMB_RATIO} times its size would come is no log; not read"
        )
    return list(dict.fromkeys(info.filename for info in members))


def _open_zip_member(raw: io.BufferedReader, name: str) -> io.BufferedReader:
    """Open a file in a zip; `zipfile` returns no more bytes than the index of the zip declares."""
    archive = zipfile.ZipFile(raw)
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise NoLogError(f"{name}: no longer in the zip") from None
    if info.flag_bits & 1:
        raise NoLogError("is encrypted; unpack it first")
    if info.compress_type not in _ZIP_METHODS:
        raise NoLogError(
            f"is packed by method {info.compress_type} of zip, which is not read; unpack it first"
        )
    return io.BufferedReader(archive.open(info))  # type: ignore[arg-type]  # it has the methods of a RawIOBase


def _is_bomb(unpacked: int, packed: int) -> bool:
    return unpacked > MAX_UNPACKED or (unpacked > BOMB_BYTES and unpacked > BOMB_RATIO * max(1, packed))


class _StandardInput(io.RawIOBase):
    """Standard input as a stream with `peek` that stays open."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = getattr(self._stream, "read1", self._stream.read)(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _utf16_chunks(raw: io.BufferedReader, encoding: str) -> Iterator[bytes]:
    """Yield UTF-16, which PowerShell writes for `>`, as UTF-8."""
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    while data := raw.read(BLOCK):
        if text := decoder.decode(data):
            yield text.encode("utf-8", "replace")


class _SparseFile:
    """A regular file without its holes: reading a hole of 100 GB would take a minute."""

    def __init__(self, raw: io.BufferedReader) -> None:
        self._raw = raw
        self._data_end = 0

    def chunks(self) -> Iterator[bytes]:
        zeros = b""
        while data := self._read_data(BLOCK):
            zeros = b"" if data[0] or data.strip(b"\0") else data
            if not zeros:
                yield data
        if zeros:
            yield zeros

    def _read_data(self, size: int) -> bytes:
        """Read up to the next hole; of a hole at the end of the file, return one piece."""
        position = self._raw.tell()
        if position >= self._data_end:
            start = self._seek(os.SEEK_DATA, position)
            if start is None:
                data = self._raw.read(size)
                if not data.strip(b"\0"):
                    self._raw.seek(0, os.SEEK_END)
                return data
            position = self._raw.seek(start)
            self._data_end = self._seek(os.SEEK_HOLE, start) or start + size
        return self._raw.read(min(size, self._data_end - position))

    def _seek(self, whence: int, position: int) -> int | None:
        """Return the next position of data or of a hole, without moving the file's position."""
        descriptor = self._raw.fileno()
        current = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            return os.lseek(descriptor, position, whence)
        except OSError:
            return None
        finally:
            os.lseek(descriptor, current, os.SEEK_SET)


class _Gzip:
    """`zlib` with the interface of `bz2` and `lzma` decompressors."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=31)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._zlib, name)

    @property
    def needs_input(self) -> bool:
        return not self._zlib.unconsumed_tail

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)


def _zstd() -> Any:
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


_ZSTD = _zstd()
if _ZSTD is not None:
    _UNPACK_ERRORS = (*_UNPACK_ERRORS, _ZSTD.ZstdError)
_READ_ERRORS: tuple[type[Exception], ...] = (OSError, *_UNPACK_ERRORS)
_UNPACKERS: dict[bytes, tuple[str, Callable[[], Any]]] = {
    b"\x1f\x8b": ("gzip", _Gzip),
    b"BZh": ("bzip2", bz2.BZ2Decompressor),
    b"\xfd7zXZ\0": ("xz", lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY)),
    **({b"\x28\xb5\x2f\xfd": ("zstd", _ZSTD.ZstdDecompressor)} if _ZSTD is not None else {}),
}


class _UnpackedStream:
    """A compressed stream of any number of members, unpacked up to the bounds above."""

    def __init__(self, raw: io.BufferedReader, kind: str, unpacker: Callable[[], Any]) -> None:
        self._raw, self._kind, self._new_unpacker = raw, kind, unpacker
        self._unpacker, self._pending = unpacker(), b""
        self._bytes_in = self._bytes_out = self._members = 0

    def chunks(self, size: int) -> Iterator[bytes]:
        """Yield pieces of at most `size` bytes.

        Raises:
            EOFError: It is cut off.
            NoLogError: It unpacks to too many bytes.
            zlib.error, lzma.LZMAError, OSError: It is damaged.
        """
        while not self._unpacker.eof or self._next_member():
            data, self._pending = self._pending, b""
            if not data and self._unpacker.needs_input:
                data = self._read_packed()
            unpacked: bytes = self._unpacker.decompress(data, size)
            if unpacked:
                self._bytes_out += len(unpacked)
                if _is_bomb(self._bytes_out, self._bytes_in):
                    raise NoLogError(
                        f"a {self._kind} file of which more than {BOMB_RATIO} times its size comes is no log; read to"
                        f" {self._bytes_out >> 20} MiB"
                    )
                yield unpacked
            elif not data and self._unpacker.needs_input and not self._unpacker.eof:
                raise EOFError

    def _read_packed(self) -> bytes:
        data = self._raw.read(_PIECE)
        self._bytes_in += len(data)
        return data

    def _next_member(self) -> bool:
        """Continue with the next member, behind any zeros; False at the end of the file."""
        pending: bytes = self._unpacker.unused_data.lstrip(b"\0")
        while not pending:
            data = self._read_packed()
            if not data:
                return False
            pending = data.lstrip(b"\0")
        self._members += 1
        if self._members > _MAX_MEMBERS and self._bytes_out < self._members * _MIN_MEMBER_BYTES:
            raise NoLogError(
                f"a {self._kind} file of {self._members} parts with next to nothing in them is no log"
            )
        self._unpacker, self._pending = self._new_unpacker(), pending
        return True


def _unpacker(raw: io.BufferedReader, head: bytes) -> _UnpackedStream | None:
    for magic, (kind, unpacker) in _UNPACKERS.items():
        if head.startswith(magic):
            return _UnpackedStream(raw, kind, unpacker)
    return None


def utf16(head: bytes) -> str:
    r"""Return the UTF-16 encoding of a stream that begins like this, with a mark or without; empty for others.

    >>> utf16("a log\n".encode("utf-16")), utf16("a longer log\n".encode("utf-16-be")), utf16(b"a log\n")
    ('utf-16', 'utf-16-be', '')
    """
    if head[:2] in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}:
        return "utf-16"
    sample = head[: len(head[:_UTF16_SAMPLE]) & -2]
    if len(sample) < _MIN_UTF16 or b"\0" not in sample:
        return ""
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    # Latin letters have a zero in one of two bytes, and never in the other.
    for zeros, letters, name in ((odd, even, "utf-16-le"), (even, odd, "utf-16-be")):
        if zeros > _UTF16_ZEROS * len(sample) / 2 and not letters and is_text(sample.replace(b"\0", b"")):
            return name
    return ""


def is_text(data: bytes) -> bool | None:
    r"""Whether a log can begin with these bytes, in any superset of ASCII; None if they are all NUL.

    >>> is_text(b"step 1\r\n"), is_text(bytes(64) + b"step 2\n"), is_text(b"s\0t\0e\0p\0"), is_text(bytes(99))
    (True, True, False, None)
    """
    if b"\0" in data[:_SAMPLE]:
        data = _HOLE.sub(b"", data)
    sample = data[:_SAMPLE]
    if not sample:
        return None
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    if controls > _MAX_CONTROLS * len(sample):
        return False
    text = sample.decode("utf-8", "replace")
    return text.count("\ufffd") <= _MAX_REPLACED * len(text)


def _decoded_chunks(raw: io.BufferedReader) -> Iterator[bytes]:
    """Return the bytes of a log, unpacked and in UTF-8."""
    head = raw.peek(_SAMPLE)
    if unpacker := _unpacker(raw, head):
        return unpacker.chunks(BLOCK)
    if encoding := utf16(head):
        return _utf16_chunks(raw, encoding)
    if head.startswith(_ZIP):
        raise NoLogError("a zip in a pipe or in a zip is not unpacked here: name the file itself")
    if head[257:262] == b"ustar":
        raise NoLogError("a tar archive, which is not unpacked here: unpack it, and name the folder")
    for magic, reason in _UNREAD.items():
        if head.startswith(magic):
            raise NoLogError(reason)
    try:
        raw.fileno()
        is_sparse = raw.seekable()
    except OSError:  # a file in a zip has no descriptor
        is_sparse = False
    return _SparseFile(raw).chunks() if is_sparse else iter(partial(raw.read, BLOCK), b"")


def _line_blocks(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""  # never a whole line
    for data in chunks:
        end = data.rfind(b"\n") + 1
        if end:
            yield b"".join((rest, memoryview(data)[:end]))
            rest = data[end:]
        elif len(rest) + len(data) < LONGEST_LINE:
            rest += data
        else:
            block = rest + data
            rest = block[-_OVERLAP:]
            yield block
    if rest:
        yield rest


def _text_blocks(raw: io.BufferedReader) -> Iterator[bytes]:
    """Yield the blocks of a log, without holes at its beginning.

    Raises:
        NoLogError: It does not begin as text.
    """
    is_empty, started = True, False
    for block in _line_blocks(_decoded_chunks(raw)):
        is_empty = False
        if not started:
            begins_as_text = is_text(block)
            if begins_as_text is None:
                continue
            if not begins_as_text:
                raise NoLogError("binary, no log; not read")
            started = True
        yield block
    if not is_empty and not started:
        raise NoLogError("it contains only NUL bytes")
