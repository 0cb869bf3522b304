"""Words after a shell has expanded them: variables and their defaults, arrays, sums, here-documents, blanks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics.lint.sources import shell_output, shell_sums
from diagnostics.lint.sources.shell_scope import Scope, Word
from diagnostics.lint.sources.shell_words import GIVEN, HOLE, SOFT, Lexer, Piece, Token
from diagnostics.lint.sources.tree import MAX_NODES, UnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.lint.sources.shell_words import Here

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
# Blanks within quotes within an expansion that is itself split into words; \5 marks quotes, which may be empty.
_PROTECTED = str.maketrans(" \t\n", "\2\3\4")
_RESTORED = str.maketrans("\2\3\4", " \t\n", "\5")
_BLANKS = {" ", "\t", "\n"}
_MAX_WORD = 200_000


class Expansion:
    """Expands the words of one script by what is known where they stand.

    Attributes:
        file: Whose words are read; `main` is the script that was started.
        scopes: The last is the innermost branch's.
    """

    def __init__(self, file: str) -> None:
        """Nothing is known yet."""
        self.file = self.main = file
        self.scopes = [Scope()]
        self._written = 0

    @property
    def scope(self) -> Scope:
        """Of the innermost branch."""
        return self.scopes[-1]

    def assigned(self, pieces: Iterable[Piece]) -> str:
        """What an assignment gives a variable: one text, not split."""
        return self._joined(pieces).translate(_RESTORED)

    def wrote(self, size: int, counted: int = 0) -> None:
        """Counts what expansion made, so that a script which doubles a variable line by line is refused."""
        self._written += size + counted
        if size > _MAX_WORD or self._written > MAX_NODES * 100:
            raise UnreadableError(f"{self.file}: its variables expand without end: no script's do")

    def words(self, token: Token) -> list[Word]:
        """Expands a word into words; an unquoted value is split where it has blanks."""
        done: list[str] = []
        current: str | None = None
        filled = [piece for piece in token.pieces if piece.kind != "text" or piece.text]
        if filled and all(
            piece.kind == "array" and self.scope.arrays.get(piece.text) == [] for piece in filled
        ):
            return []
        if len(filled) == 1 and filled[0].kind == "array" and filled[0].text in self.scope.arrays:
            # The words of an array stand where the array was written.
            words = self.scope.arrays[filled[0].text]
            self.wrote(sum(len(word.text) + 8 for word in words))
            return [Word(word.text.translate(_RESTORED), word.line) for word in words]
        for piece in token.pieces:
            if piece.kind == "array":
                unknown = GIVEN if piece.text == "@" else HOLE
                items = [word.text for word in self.scope.arrays.get(piece.text, [Word(unknown, token.line)])]
                if items:
                    done += [(current or "") + items[0], *items[1:]]
                    current = done.pop()
                continue
            text = self._text(piece)
            whole = piece.quoted or piece.kind == "text"
            current = (current or "") + text if whole else _split(text, current, done)
        if current is not None:
            done.append(current)
        self.wrote(sum(map(len, done)) + 8 * len(done))
        return [Word(text.translate(_RESTORED), token.line) for text in done]

    def _joined(self, pieces: Iterable[Piece], *, protect: bool = False) -> str:
        """The pieces as one text; `protect` keeps blanks in quotes from being taken for ends of words later."""
        # An array within a default would be several words: that is beyond what this follows.
        texts = (
            (piece, HOLE if protect and piece.kind == "array" else self._text(piece)) for piece in pieces
        )
        return "".join(
            "\5" + text.translate(_PROTECTED) if protect and piece.quoted else text for piece, text in texts
        )

    def _text(self, piece: Piece) -> str:  # noqa: PLR0911 - one line a case
        if piece.kind == "text":
            return piece.text
        if piece.kind == "arithmetic":
            return shell_sums.calculate(piece.text, self.scope.variables)
        if piece.kind == "array":
            unknown = GIVEN if piece.text == "@" else HOLE
            return " ".join(word.text for word in self.scope.arrays.get(piece.text, [Word(unknown, 0)]))
        if piece.kind in {"count", "item"}:
            return self._of_array(piece)
        if piece.kind == "command":
            text = shell_output.printed(
                piece.text, lambda token: self._joined(token.pieces).translate(_RESTORED)
            )
            return HOLE if text is None else text
        if piece.kind != "variable":
            return GIVEN if piece.text in {"@", "*"} else HOLE
        return self._variable(piece)

    def _of_array(self, piece: Piece) -> str:
        """How many words an array has, or one of them."""
        if piece.text == "BASH_SOURCE":
            return _absolute(self.file)
        words = self.scope.arrays.get(piece.text)
        if words is None or any(word.unknown for word in words):
            return HOLE
        if piece.kind == "count":
            return (SOFT if any(SOFT in word.text for word in words) else "") + str(len(words))
        return (
            words[int(piece.operation)].text
            if len(piece.operation) < 5 and int(piece.operation) < len(words)
            else ""
        )

    def _variable(self, piece: Piece) -> str:  # noqa: PLR0911 - one line a case
        text = self.scope.variables.get(piece.text)
        operation = piece.operation
        if text is None and piece.text in {"0", "BASH_SOURCE"}:
            return _absolute(self.main if piece.text == "0" else self.file)
        if text is None and piece.text in self.scope.arrays:
            return HOLE
        if operation in {"", "?", ":?"}:
            return HOLE if text is None else text
        if operation in {":+", "+"}:
            if text is None or (operation == ":+" and text.replace(SOFT, "") == ""):
                return SOFT
            return HOLE if HOLE in text else SOFT + self._joined(piece.other, protect=True)
        empty = text is None or (operation.startswith(":") and text.replace(SOFT, "") == "")
        if not empty:
            return text or ""
        text = SOFT + self._joined(piece.other, protect=True)
        if operation.endswith("="):
            self.scope.variables[piece.text] = text.translate(_RESTORED)
        return text

    def filled(self, here: Here) -> str:
        """A here-document with what the shell puts into it."""
        lexer = Lexer(here.text, self.file, here.line)
        parts: list[str] = []
        while lexer.at < len(here.text):
            char, follows = here.text[lexer.at], here.text[lexer.at + 1 : lexer.at + 2]
            if char == "\\" and follows in {"$", "`", "\\"}:
                parts.append(follows)
                lexer.at += 2
            elif char == "$" and follows:
                parts.append(self._text(lexer.dollar()))
            else:
                parts.append(char)
                lexer.at += 1
        text = "".join(parts).translate(_RESTORED)
        self.wrote(len(text))
        return text


def _absolute(file: str) -> str:
    """Where a script lies, if it is one that lies somewhere."""
    path = Path(file)
    return str(path.absolute()) if path.suffix in SCRIPTS else HOLE


def _split(text: str, current: str | None, done: list[str]) -> str | None:
    """Splits what an unquoted expansion made at its blanks; returns the word that is still open."""
    soft = SOFT if SOFT in text else ""
    bare = text.replace(SOFT, "")
    parts = [part for part in re.split(r"[ \t\n]+", bare) if part]
    if current is not None and bare[:1] in _BLANKS:
        done.append(current)
        current = None
    for number, part in enumerate(parts):
        if number and current is not None:
            done.append(current)
            current = None
        current = (current or "") + soft + part
    if parts and bare[-1:] in _BLANKS and current is not None:
        done.append(current)
        current = None
    return current
