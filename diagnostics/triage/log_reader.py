"""Read a log in blocks of whole lines and in bounded memory: plain text, UTF-16 or gzip.

A very long line is split into pieces that overlap. A file that is no log, or that unpacks to far more than a log does,
is refused with a reason. `looks_like_log` and `is_text` check the first bytes.
"""

import codecs
import io
import os
import re
import sys
import tomllib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diagnostics import safe_io
from diagnostics.safe_io import GIB, MIB

# Number of bytes that are read or unpacked at once.
BLOCK = 1 << 20
# A line of this number of bytes or more is returned in pieces that overlap by OVERLAP bytes.
MAX_LINE = 2 << 20
OVERLAP = 1 << 12
# Bytes of each block by which text is recognized.
_SAMPLE = 1 << 14
# Logs compress to 1/10 or 1/100. A file that unpacks to more than BOMB_BYTES with a higher ratio is no log.
BOMB_BYTES, BOMB_RATIO = 256 * MIB, 400
MAX_UNPACKED = 64 * GIB
# Log rotation and parallel compressors join members. Many tiny members are no log.
_MAX_MEMBERS, _MIN_MEMBER_BYTES = 10_000, 512
_PIECE = 1 << 16
SOURCES = tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))
# First bytes of compressed logs, and of all files that are not read, with the reason.
_COMPRESSED = [magic.encode("latin-1") for magic in SOURCES["compressed"]]
_UNREAD_FORMATS = {magic.encode("latin-1"): reason for magic, reason in SOURCES["unread_formats"].items()}
_GZIP_MAGIC, _GZIP = b"\x1f\x8b", 31
# Control characters that no program prints to a log.
_CONTROLS = bytes(number for number in (*range(32), 127) if chr(number) not in "\a\b\t\n\v\f\r\x1b")
# A file that was truncated while it was written has a hole before later text.
_HOLE = re.compile(rb"\0{16,}")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_MAX_CONTROLS, _MAX_REPLACED = 0.02, 0.5


class SourceError(ValueError):
    """Raised when a log can't be found or read; the message is one line for the user."""


class NoLogError(ValueError):
    """Raised for a file that is no log, or can't be unpacked; the message does not have the file's name."""


@dataclass(frozen=True)
class LogSource:
    """One log.

    Attributes:
        name: Name in reports.
        path: The file; None for standard input.
        root: Folder in which the log was found, which links may not leave; None for a file that the user named.
    """

    name: str
    path: Path | None
    root: Path | None = None

    def blocks(self) -> Iterator[bytes]:
        """Read the log once in bounded memory, and yield blocks of lines; a line over MAX_LINE comes in pieces.

        Raises:
            SourceError: The log can't be read, is no text, is damaged, or unpacks to too many bytes.
        """
        try:
            if self.path is None:
                stream = sys.stdin.buffer
                yield from _text_blocks(stream if hasattr(stream, "peek") else io.BufferedReader(stream))  # type: ignore[arg-type]
                return
            with safe_io.open_regular(self.path, inside=self.root, pipes=True) as raw:
                yield from _text_blocks(raw)
        except EOFError:
            raise SourceError(f"{self.name}: the packed file is cut off; read as far as it goes") from None
        except NoLogError as error:
            raise SourceError(f"{self.name}: {error}") from None
        except (OSError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SourceError(f"{self.name}: cannot be read: {reason}") from None


def looks_like_log(path: Path) -> bool:
    """Return whether a file begins like a log; True also if it cannot be read or unpacked, which `blocks` reports."""
    try:
        with safe_io.open_regular(path) as raw:
            head = raw.peek(4096)[:4096]
            if head.startswith(_GZIP_MAGIC):
                head = next(_gunzip(raw), b"")
    except (EOFError, NoLogError, OSError, zlib.error):
        return True
    return head.startswith((*_UTF16, *_COMPRESSED)) or is_text(head) is not False


def _gunzip(raw: io.BufferedReader) -> Iterator[bytes]:
    """Unpack a gzip stream, within limits on its unpacked size, compression ratio and number of members.

    Raises:
        EOFError: The stream is cut off.
        NoLogError: The stream unpacks to too many bytes, or has too many tiny members.
        zlib.error: The stream is damaged.
    """
    unpacker, data = zlib.decompressobj(wbits=_GZIP), b""
    members, bytes_in, bytes_out = 1, 0, 0
    while True:
        if unpacker.eof:
            # The next member may be behind zeros.
            data = unpacker.unused_data.lstrip(b"\0")
            while not data:
                piece = raw.read(_PIECE)
                if not piece:
                    return
                bytes_in, data = bytes_in + len(piece), piece.lstrip(b"\0")
            unpacker, members = zlib.decompressobj(wbits=_GZIP), members + 1
            if members > _MAX_MEMBERS and bytes_out < members * _MIN_MEMBER_BYTES:
                raise NoLogError(f"a gzip file of {members} parts with next to nothing in them is no log")
        elif not data:
            data = raw.read(_PIECE)
            bytes_in += len(data)
            if not data:
                raise EOFError
        unpacked = unpacker.decompress(data, BLOCK)
        data = unpacker.unconsumed_tail
        bytes_out += len(unpacked)
        if bytes_out > MAX_UNPACKED or bytes_out > max(BOMB_BYTES, BOMB_RATIO * bytes_in):
            raise NoLogError(
                f"a gzip file of which more than {BOMB_RATIO} times its size comes is no log; read to"
                f" {bytes_out >> 20} MiB"
            )
        if unpacked:
            yield unpacked


def _utf16_chunks(raw: io.BufferedReader) -> Iterator[bytes]:
    """Yield a UTF-16 file (as PowerShell's `>` writes) as UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    while data := raw.read(BLOCK):
        if text := decoder.decode(data):
            yield text.encode("utf-8", "replace")


def _plain_chunks(raw: io.BufferedReader) -> Iterator[bytes]:
    """Yield a file without blocks of only NUL bytes, which a log has if it was truncated while being written.

    If the file ends with such a block, the block is yielded: the file may contain nothing else.
    """
    zeros = b""
    while data := raw.read(BLOCK):
        zeros = b"" if data[0] or data.strip(b"\0") else data
        if not zeros:
            yield data
        elif raw.seekable():
            try:  # holes of terabytes take no space
                raw.seek(os.lseek(raw.fileno(), raw.tell(), os.SEEK_DATA))
            except OSError:
                break  # a hole up to the end
    if zeros:
        yield zeros


def is_text(data: bytes) -> bool | None:
    r"""Return whether a log can begin with these bytes, in any superset of ASCII; None if there are none, or NUL alone.

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
    """Return the bytes of a log, unpacked and in UTF-8; raise NoLogError for a format that is not read."""
    head = raw.peek(_SAMPLE)
    if head.startswith(_GZIP_MAGIC):
        return _gunzip(raw)
    if head.startswith(_UTF16):
        return _utf16_chunks(raw)
    if head[257:262] == b"ustar":
        raise NoLogError("a tar archive, which is not unpacked here: unpack it, and name the folder")
    for magic, reason in _UNREAD_FORMATS.items():
        if head.startswith(magic):
            raise NoLogError(reason)
    return _plain_chunks(raw)


def _line_blocks(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield blocks of whole lines; a line over MAX_LINE comes in pieces that overlap."""
    rest = b""  # never a whole line
    for data in chunks:
        end = data.rfind(b"\n") + 1
        if end:
            yield b"".join((rest, memoryview(data)[:end]))
            rest = data[end:]
        elif len(rest) + len(data) < MAX_LINE:
            rest += data
        else:
            block = rest + data
            rest = block[-OVERLAP:]
            yield block
    if rest:
        yield rest


def _text_blocks(raw: io.BufferedReader) -> Iterator[bytes]:
    """Yield the blocks of a log, without blocks of only NUL bytes at its beginning.

    Raises:
        NoLogError: The log does not begin with text, or has a format that is not read.
    """
    begins_as_text: bool | None = True
    blocks = _line_blocks(_decoded_chunks(raw))
    for block in blocks:
        begins_as_text = is_text(block)
        if begins_as_text:
            yield block
            yield from blocks
        elif begins_as_text is False:
            raise NoLogError("binary, no log; not read")
    if begins_as_text is None:
        raise NoLogError("it contains only NUL bytes")
