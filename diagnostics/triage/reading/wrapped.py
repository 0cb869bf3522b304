"""Lines that a terminal or an editor broke: put together again, where the text is short and shows its width."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.triage.reading.prefixes import clean
from diagnostics.triage.tracebacks import BOX, HEADER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# What is pasted is short; a longer log was not.
LARGEST = 300_000
NARROWEST, WIDEST = 60, 240
# One line is broken into so many pieces at the most.
_MOST_PIECES = 6


def rejoined(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yields (index of the first piece, text) for what may be one line broken at the width of the whole.

    Nobody can tell whether a break fell on a space: both readings come.
    """
    plain = [line.removeprefix("> ") for line in map(str.rstrip, lines)]
    width = max(map(len, plain), default=0)
    if not NARROWEST <= width <= WIDEST:
        return
    index = 0
    while index < len(plain) - 1:
        pieces = _pieces(plain, index, width) if plain[index].lstrip()[:1] not in BOX else []
        if len(pieces) > 1:
            yield from ((index, text) for text in together(pieces))
        index += 1


def together(pieces: Sequence[str]) -> tuple[str, ...]:
    """The texts that pieces of one line may have been: broken anywhere, or at spaces."""
    first = clean(pieces[0]).text
    return first + "".join(pieces[1:]), " ".join([first, *(piece.lstrip() for piece in pieces[1:])])


def goes_on(piece: str) -> bool:
    """Whether a line may be the rest of the one before: it has no beginning of its own."""
    line = clean(piece)
    begun = line.level or line.clocks or line.stream or HEADER in piece or piece.lstrip().startswith('File "')
    return bool(piece.strip()) and not begun and piece.lstrip()[0] not in BOX


def _pieces(lines: Sequence[str], index: int, width: int) -> list[str]:
    pieces = [lines[index]]
    while len(pieces) < _MOST_PIECES and index + len(pieces) < len(lines):
        following = lines[index + len(pieces)]
        word = following.split(maxsplit=1)[0] if following.strip() else ""
        if len(pieces[-1]) + 1 + len(word) <= width or not goes_on(following):
            break
        pieces.append(following)
    return pieces
