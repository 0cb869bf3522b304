"""Where logs come from: files, folders, gzip, pipes, standard input; read in blocks of whole lines."""

from __future__ import annotations

import codecs
import gzip
import io
import os
import stat
import sys
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK = 1 << 20
# A line longer than this is looked at in pieces; the overlap keeps what stands on a cut.
LONGEST_LINE = 2 << 20
_OVERLAP = 1 << 12
_GZIP = b"\x1f\x8b"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Logs shrink to a tenth or a hundredth; from here on a file that unpacks to so many times its size is none.
_BOMB_BYTES, _BOMB_TIMES = 2 << 30, 400


class SourceError(ValueError):
    """Raised when a log can't be found or read; the message is one line for the user."""


@dataclass(frozen=True)
class Block:
    """Bytes of a log that end at the end of a line, and the number of their first line."""

    data: bytes
    first_line: int


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class LogSource:
    """One log; `path` is None for standard input."""

    name: str
    path: Path | None

    def blocks(self) -> Iterator[Block]:
        """Reads it once, in bounded memory.

        Raises:
            SourceError: It can't be read, or it says gzip and is not, is cut off, or unpacks without end.
        """
        try:
            if self.path is None:
                yield from _blocks(_plain(io.BufferedReader(_Unclosed(sys.stdin.buffer)), self.name))
                return
            with _open(self.path) as raw:
                yield from _blocks(_plain(raw, self.name))
        except EOFError:
            raise SourceError(f"{self.name}: the gzip file is cut off; read as far as it goes") from None
        except (OSError, zlib.error) as error:
            told = getattr(error, "strerror", None) or str(error)
            raise SourceError(f"{self.name}: cannot be read: {told}") from None


class _Unclosed(io.RawIOBase):
    """Standard input as a stream that may be peeked into, and stays open."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        read = getattr(self._stream, "read1", self._stream.read)(len(buffer))
        buffer[: len(read)] = read
        return len(read)


class _Unpacked:
    """A gzip file, as long as what comes out of it can be a log."""

    def __init__(self, raw: io.BufferedReader, name: str) -> None:
        self._gzip, self._raw, self._name = gzip.GzipFile(fileobj=raw), raw, name
        self._out = 0

    def read(self, size: int, /) -> bytes:
        data = self._gzip.read(size)
        self._out += len(data)
        if self._out > _BOMB_BYTES and self._out > _BOMB_TIMES * max(1, self._packed()):
            raise SourceError(
                f"{self._name}: a gzip file of which more than {_BOMB_TIMES} times its size comes is no log; read to"
                f" {self._out >> 20} MiB"
            )
        return data

    def _packed(self) -> int:
        return self._raw.tell() if self._raw.seekable() else self._out


class _Recoded:
    """UTF-16, which PowerShell writes where a shell's `>` is used, as UTF-8."""

    def __init__(self, raw: io.BufferedReader) -> None:
        self._raw = raw
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")

    def read(self, size: int, /) -> bytes:
        while data := self._raw.read(size):
            if text := self._decoder.decode(data):
                return text.encode("utf-8", "replace")
        return b""


def _open(path: Path) -> io.BufferedReader:
    """Opens a file, or a pipe without waiting for somebody who writes to it."""
    mode = path.stat().st_mode
    if not stat.S_ISFIFO(mode):
        if not stat.S_ISREG(mode):
            raise OSError(f"{path} is not a file")
        return path.open("rb")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "rb")


def _plain(raw: io.BufferedReader, name: str) -> _Stream:
    """The stream of a log's bytes, unpacked and in UTF-8."""
    head = raw.peek(2)[:2]
    if head == _GZIP:
        return _Unpacked(raw, name)
    return _Recoded(raw) if head in _UTF16 else raw


def _blocks(stream: _Stream) -> Iterator[Block]:
    rest, line = b"", 1
    while read := stream.read(BLOCK):
        data = rest + read
        end = data.rfind(b"\n") + 1
        if not end and len(data) < LONGEST_LINE:
            rest = data
            continue
        whole, rest = (data[:end], data[end:]) if end else (data, data[-_OVERLAP:])
        yield Block(whole, line)
        line += whole.count(b"\n")
    if rest:
        yield Block(rest, line)
