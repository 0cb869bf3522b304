"""Where logs come from: files, packed ones too, pipes, standard input; read in blocks of whole lines."""

from __future__ import annotations

import codecs
import io
import os
import sys
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from diagnostics import safe_io
from diagnostics.triage.reading import kinds, packed
from diagnostics.triage.reading.kinds import NoLogError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from diagnostics.triage.reading.packed import Stream

BLOCK = 1 << 20
# A line longer than this is looked at in pieces; the overlap keeps what stands on a cut.
LONGEST_LINE = 2 << 20
_OVERLAP = 1 << 12


class SourceError(ValueError):
    """Raised when a log can't be found or read; the message is one line for the user."""


@dataclass(frozen=True)
class LogSource:
    """One log; `path` is None for standard input.

    Attributes:
        member: Its name in the zip that `path` is; empty where the file is the log.
        inside: The folder in which it was found, out of which no link leads.
    """

    name: str
    path: Path | None
    member: str = ""
    inside: Path | None = None

    def blocks(self) -> Iterator[bytes]:
        """Reads it once, in bounded memory: blocks that end at the end of a line.

        Raises:
            SourceError: It can't be read, is no text, or it says packed and is not, is cut off, or unpacks without end.
        """
        try:
            if self.path is None:
                yield from _read(io.BufferedReader(_Unclosed(sys.stdin.buffer)))
                return
            with safe_io.open_regular(self.path, inside=self.inside, pipes=True) as raw:
                yield from _read(packed.file_of(raw, self.member) if self.member else raw)
        except EOFError:
            raise SourceError(f"{self.name}: the packed file is cut off; read as far as it goes") from None
        except NoLogError as error:
            raise SourceError(f"{self.name}: {error}") from None
        except (OSError, *packed.ERRORS) as error:
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


class _Recoded:
    """UTF-16, which PowerShell writes where a shell's `>` is used, as UTF-8."""

    def __init__(self, raw: io.BufferedReader, encoding: str) -> None:
        self._raw = raw
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")

    def read(self, size: int, /) -> bytes:
        while data := self._raw.read(size):
            if text := self._decoder.decode(data):
                return text.encode("utf-8", "replace")
        return b""


class _WithoutHoles:
    """A file without what was never written of it: a hole of 100 GB takes no room on the disk, and no time here."""

    def __init__(self, raw: io.BufferedReader) -> None:
        self._raw, self._fd = raw, raw.fileno()
        self._until = 0

    def read(self, size: int, /) -> bytes:
        nothing = b""
        while (data := self._written(size)) and not data[0] and not data.strip(b"\0"):
            nothing = data
        return data or nothing

    def _written(self, size: int) -> bytes:
        """What was written from here on, up to the next hole; of a hole behind which nothing was, a piece."""
        place = self._raw.tell()
        if place >= self._until:
            start = self._first(os.SEEK_DATA, place)
            if start is None:
                data = self._raw.read(size)
                if not data.strip(b"\0"):
                    self._raw.seek(0, os.SEEK_END)
                return data
            place = self._raw.seek(start)
            self._until = self._first(os.SEEK_HOLE, start) or start + size
        return self._raw.read(min(size, self._until - place))

    def _first(self, what: int, place: int) -> int | None:
        """The first place from this one on that was written, or was not; nothing where there is none."""
        now = os.lseek(self._fd, 0, os.SEEK_CUR)
        try:
            return os.lseek(self._fd, place, what)
        except OSError:
            return None
        finally:
            # The reader knows where it left the file.
            os.lseek(self._fd, now, os.SEEK_SET)


def _read(raw: io.BufferedReader) -> Iterator[bytes]:
    return _of_text(_blocks(_plain(raw)))


def _plain(raw: io.BufferedReader) -> Stream:
    """The stream of a log's bytes, unpacked and in UTF-8."""
    head = raw.peek(kinds.SAMPLE)
    for magic, (kind, unpacker) in packed.PACKERS.items():
        if head.startswith(magic):
            return packed.Unpacked(raw, kind, unpacker)
    if encoding := kinds.utf16(head):
        return _Recoded(raw, encoding)
    if head.startswith(kinds.ZIP):
        raise NoLogError("a zip in a pipe or in a zip is not unpacked here: name the file itself")
    if said := kinds.unread(head):
        raise NoLogError(said)
    try:
        return _WithoutHoles(raw) if raw.seekable() else raw
    except OSError:  # a member of a zip is no file of its own
        return raw


def _blocks(stream: Stream) -> Iterator[bytes]:
    rest = b""  # never a whole line
    while read := stream.read(BLOCK):
        end = read.rfind(b"\n") + 1
        if end:
            yield b"".join((rest, memoryview(read)[:end]))
            rest = read[end:]
        elif len(rest) + len(read) < LONGEST_LINE:
            rest += read
        else:
            whole = rest + read
            rest = whole[-_OVERLAP:]
            yield whole
    if rest:
        yield rest


def _of_text(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks of what begins as a log does, holes before it left out."""
    begun = False
    block = None
    for block in blocks:
        if not begun:
            found = kinds.is_text(block)
            if found is None:
                continue
            if not found:
                raise NoLogError("binary, no log; not read")
            begun = True
        yield block
    if block is not None and not begun:
        raise NoLogError("nothing but NUL bytes in it; nothing was read")
