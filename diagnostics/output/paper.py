"""What a report is written on: text with styles, wrapped to the width of the terminal as Rich wraps it.

Every answer ends here, and loading Rich for it took a tenth of a short one. Of Rich are only the widths of letters, and
only where a text has others than Latin ones.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import TextIO

from diagnostics import door

# A text, or pieces of one with a style each.
Pieces = str | list[tuple[str, str]]

_ATTRIBUTES = {"bold": "1", "dim": "2"}
_COLOURS = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "default": "39"}
_TAB = 8
# How we are started from a checkout, and our name where we are installed: a command that is told is one to type.
_MODULE, _PROGRAM = "python -m diagnostics ", "grpo-doctor"
# They move the cursor, and are no letters.
_MOVES = dict.fromkeys((7, 8, 11, 12, 13))
# Our own marks, for a stream that takes ASCII alone, one for one; of other letters it gets their number.
_PLAIN_MARKS = str.maketrans({"✔": "+", "✘": "x", "…": "~", "→": ">", "·": "."})
_WORD = re.compile(r"\s*\S+\s*")
# Letters that are not one cell wide, or may not be.
_WIDE = re.compile("[^\x20-\x7e\xa0-\xac\xae-\u02ff…]")


class Paper:
    """Writes lines to a stream, as its terminal takes them.

    Attributes:
        is_terminal: Whether somebody looks at it.
        width: Of its lines.
        height: How many of them a screen has.
    """

    def __init__(self, stream: TextIO, *, width: int = 0) -> None:
        """Looks at the stream and the environment.

        Args:
            stream: Where it goes.
            width: Of its lines; 0 for the terminal's. What has a width of its own is no terminal.
        """
        environ = os.environ
        forced = environ.get("FORCE_COLOR")
        tty = {"0": False, "1": True}.get(
            environ.get("TTY_COMPATIBLE", ""), None if forced is None else forced != ""
        )
        self._out = door.painting(stream)
        self.is_terminal = not width and (_isatty(stream) if tty is None else tty)
        dumb = self.is_terminal and environ.get("TERM", "").lower() in {"dumb", "unknown"}
        columns, rows = _terminal_size()
        self.width = width or (80 if dumb else columns)
        self.height = rows
        self._ascii = (getattr(stream, "encoding", None) or "").lower() in {
            "ascii",
            "us-ascii",
            "ansi_x3.4-1968",
        }
        self._codes = {**_ATTRIBUTES, **({} if environ.get("NO_COLOR") else _COLOURS)}
        if dumb or not self.is_terminal:
            self._codes = {}

    def print(
        self, text: Pieces = "", style: str = "", *, indent: int = 0, whole: bool = False, crop: bool = False
    ) -> None:
        """Writes a text in lines.

        Args:
            text: The text, or its pieces.
            style: Of all of it, below that of a piece: words as `bold red`.
            indent: Blanks before each line; what is empty is then no line.
            whole: Whether a line is never broken, whatever its length.
            crop: Whether it is cut off where the line ends instead.
        """
        pieces = [(text, "")] if isinstance(text, str) else text
        if sys.argv[0].rpartition("/")[2] == _PROGRAM:
            pieces = [(each.replace(_MODULE, f"{_PROGRAM} "), own) for each, own in pieces]
        plain = "".join(each for each, _ in pieces).translate(_MOVES)
        styles = [f"{style} {own}" for each, own in pieces for _ in each.translate(_MOVES)]
        start = 0
        if indent and not plain.strip("\n"):
            return
        for line in plain.split("\n"):
            here, marks = _expanded(line, styles[start : start + len(line)])
            start += len(line) + 1
            for first, last, more in self._broken(here, max(1, self.width - indent), whole=whole, crop=crop):
                shown = (here[first:last] + more).rstrip(" ")
                told = self._painted(shown, marks[first : last + len(more)][: len(shown)])
                told = f"{' ' * indent if shown else ''}{told}\n"
                self._out.write(_in_ascii(told) if self._ascii else told)
        self._out.flush()

    def wrapped(self, text: str, width: int) -> list[str]:
        """A text of one line in lines of that width."""
        return [
            text[first:last].rstrip()
            for first, last, _ in self._broken(text, max(1, width), whole=False, crop=False)
        ]

    def _broken(self, line: str, width: int, *, whole: bool, crop: bool) -> Iterator[tuple[int, int, str]]:
        """Where the lines of a line begin and end, and what comes behind."""
        if whole:
            yield 0, len(line), ""
        elif crop:
            cut = _cut(line, width - 1)
            blank = " " * (width - 1 - _cells(cut))  # half of a letter of two cells
            yield (0, len(line), "") if _cells(line) <= width else (0, len(cut), f"{blank}…")
        else:
            breaks = [0, *_breaks(line, width), len(line)]
            for first, last in pairwise(breaks):
                yield first, first + len(_cut(line[first:last], width)), ""

    def _painted(self, text: str, marks: Sequence[str]) -> str:
        """A line with its styles, nothing in it that acts but ours."""
        if not self._codes:
            return door.visible(text)
        told, place = "", 0
        for style, run in groupby(marks):
            piece = text[place : (place := place + sum(1 for _ in run))]
            codes = self._style(style)
            told += f"\x1b[{codes}m{door.visible(piece)}\x1b[0m" if codes else door.visible(piece)
        return told

    def _style(self, words: str) -> str:
        asked = words.split()
        colours = [word for word in asked if word in _COLOURS][-1:]
        attributes = [word for word in _ATTRIBUTES if word in asked]
        return ";".join(self._codes[word] for word in attributes + colours if word in self._codes)


def _in_ascii(text: str) -> str:
    return text.translate(_PLAIN_MARKS).encode("ascii", "backslashreplace").decode()


def _isatty(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def _terminal_size() -> tuple[int, int]:
    """COLUMNS and LINES, else of the first standard stream that is a terminal, else 80 by 25."""
    asked = [
        int(value) if (value := os.environ.get(name, "")).isdigit() else 0 for name in ("COLUMNS", "LINES")
    ]
    columns = rows = 0
    for number in (0, 1, 2):
        if all(asked):
            break
        try:
            columns, rows = os.get_terminal_size(number)
        except (OSError, ValueError):
            continue
        break
    return asked[0] or columns or 80, asked[1] or rows or 25


def _expanded(line: str, marks: list[str]) -> tuple[str, list[str]]:
    """A line with blanks for its tabs."""
    while (place := line.find("\t")) >= 0:
        blanks = _TAB - _cells(line[:place]) % _TAB
        line = line[:place] + " " * blanks + line[place + 1 :]
        marks = marks[:place] + [marks[place]] * blanks + marks[place + 1 :]
    return line, marks


def _breaks(line: str, width: int) -> Iterator[int]:
    """Where a line is broken: between words, and within one that is longer than a line."""
    taken = 0
    for match in _WORD.finditer(line):
        word, start = match[0], match.start()
        long = _cells(word.rstrip())
        if long <= width - taken:
            taken += _cells(word)
        elif long > width:
            for piece in _folded(word, width):
                if start:
                    yield start
                start += len(piece)
                taken = _cells(piece)
        elif taken and start:
            yield start
            taken = _cells(word)


def _cells(text: str) -> int:
    """How many cells of a terminal a text takes."""
    if not _WIDE.search(text):
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _folded(word: str, width: int) -> list[str]:
    if not _WIDE.search(word):
        return [word[place : place + width] for place in range(0, len(word), width)]
    from rich.cells import chop_cells

    return chop_cells(word, width)


def _cut(text: str, width: int) -> str:
    """As much of a text as fits."""
    if _cells(text) <= width:
        return text
    return _folded(text, width)[0]
