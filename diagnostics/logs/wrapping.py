"""Rejoin lines that a terminal or an editor wrapped, in short texts whose width is visible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diagnostics.logs.prefixes import clean
from diagnostics.logs.tracebacks import BOX, HEADER

# Pasted text is short; a longer log was not pasted.
LARGEST = 300_000
NARROWEST, WIDEST = 60, 240
# One line is broken into so many pieces at the most.
_MOST_PIECES = 6


def rejoined_lines(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield (index of the first piece, text) for each line that may have been wrapped.

    A break may or may not have replaced a space: both readings are yielded.
    """
    stripped = [line.removeprefix("> ") for line in map(str.rstrip, lines)]
    width = max(map(len, stripped), default=0)
    if not NARROWEST <= width <= WIDEST:
        return
    index = 0
    while index < len(stripped) - 1:
        pieces = _pieces(stripped, index, width) if stripped[index].lstrip()[:1] not in BOX else []
        if len(pieces) > 1:
            yield from ((index, text) for text in join_pieces(pieces))
        index += 1


def join_pieces(pieces: Sequence[str]) -> tuple[str, ...]:
    """Return the possible texts of a wrapped line: wrapped anywhere, and wrapped at spaces."""
    first = clean(pieces[0]).text
    return first + "".join(pieces[1:]), " ".join([first, *(piece.lstrip() for piece in pieces[1:])])


def is_continuation(piece: str) -> bool:
    """Whether a line may continue the line before it: it has no prefix and starts no traceback or frame."""
    line = clean(piece)
    starts = (
        line.level or line.clocks or line.stream or HEADER in piece or piece.lstrip().startswith('File "')
    )
    return bool(piece.strip()) and not starts and piece.lstrip()[0] not in BOX


def _pieces(lines: Sequence[str], index: int, width: int) -> list[str]:
    pieces = [lines[index]]
    while len(pieces) < _MOST_PIECES and index + len(pieces) < len(lines):
        following = lines[index + len(pieces)]
        word = following.split(maxsplit=1)[0] if following.strip() else ""
        if len(pieces[-1]) + 1 + len(word) <= width or not is_continuation(following):
            break
        pieces.append(following)
    return pieces
