"""Where logs come from: files, folders, gzip, standard input; read in blocks of whole lines."""

from __future__ import annotations

import gzip
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BLOCK = 1 << 20
# A line longer than this is looked at in pieces; the overlap keeps what stands on a cut.
LONGEST_LINE = 2 << 20
_OVERLAP = 1 << 12
_LOGS = (".log", ".txt", ".out", ".err", ".gz", ".jsonl", "")
_GZIP = b"\x1f\x8b"


class SourceError(ValueError):
    """Raised when a log can't be found or read; the message is one line for the user."""


@dataclass(frozen=True)
class Block:
    """Bytes of a log that end at the end of a line, and the number of their first line."""

    data: bytes
    first_line: int


@dataclass(frozen=True)
class Source:
    """One log; `path` is None for standard input."""

    name: str
    path: Path | None

    def blocks(self) -> Iterator[Block]:
        """Reads it once, in bounded memory.

        Raises:
            SourceError: It can't be read, or it says gzip and is not, or is cut off.
        """
        try:
            if self.path is None:
                yield from _blocks(sys.stdin.buffer)
                return
            with self.path.open("rb") as raw:
                head = raw.read(2)
                raw.seek(0)
                yield from _blocks(gzip.GzipFile(fileobj=raw) if head == _GZIP else raw)
        except EOFError:
            raise SourceError(f"{self.name}: the gzip file is cut off; read as far as it goes") from None
        except (OSError, zlib.error) as error:
            raise SourceError(f"{self.name}: cannot be read: {error}") from None


def _blocks(stream: IO[bytes] | gzip.GzipFile) -> Iterator[Block]:
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


def find(arguments: Sequence[str]) -> list[Source]:
    """The logs that the command line names: `-` is standard input, a folder means the logs below it.

    Raises:
        SourceError: Something named is not there, or a folder has no log.
    """
    found: list[Source] = []
    for argument in arguments:
        path = Path(argument)
        if argument == "-":
            found.append(Source("<stdin>", None))
        elif path.is_dir():
            found += in_folder(path)
        elif path.exists():
            found.append(Source(path.name, path))
        else:
            raise SourceError(f"{argument}: no such file or folder")
    named: dict[str, int] = {}
    for source in found:
        named[source.name] = named.get(source.name, 0) + 1
    return [
        Source(str(source.path), source.path) if named[source.name] > 1 and source.path else source
        for source in found
    ]


def in_folder(folder: Path) -> list[Source]:
    """The logs in a folder and below it, by name.

    Raises:
        SourceError: There are none.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix.lower() in _LOGS)
    if not paths:
        raise SourceError(f"{folder}: no log in it (files {' '.join(filter(None, _LOGS))} or without suffix)")
    return [Source(str(path.relative_to(folder)), path) for path in paths]
