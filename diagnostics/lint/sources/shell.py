"""A shell script as the commands it would run, with what is known of their words. Nothing is run.

Variables are followed through assignments, defaults and arithmetic. What depends on a branch, a loop, a command's
output or the outside is not known, and stays so through every word that it goes into.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import given
from diagnostics.lint.sources import slurm
from diagnostics.lint.sources.shell_words import Lexer, Piece, Token
from diagnostics.lint.sources.tree import MAX_BYTES, MAX_NODES, UnreadableError
from diagnostics.lint.values import UNKNOWN, Place, Value

if TYPE_CHECKING:
    from collections.abc import Iterable

# Marks within a word, which no script can contain: here something unknown stood; this comes from a default.
HOLE, SOFT = "\0", "\1"
# What a script is itself given, "$@": a hole that is empty unless somebody fills it.
GIVEN = "\6" + HOLE
# Blanks within quotes within an expansion that is itself split into words; \5 marks quotes, which may be empty.
_PROTECTED = str.maketrans(" \t\n", "\2\3\4")
_RESTORED = str.maketrans("\2\3\4", " \t\n", "\5")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_ENDS = {"\n", ";", "&", "&&", "||", "|", "|&", ";;", ";&", ";;&", "(", ")", "(("}
_REDIRECTIONS = {"<", ">", ">>", "<<<", ">&", "<&", ">|", "&>", "&>>"}
_DECLARING = {"export", "declare", "local", "readonly", "typeset"}
_OPENING = {"if", "while", "until", "for", "case", "select"}
_ARITHMETIC = re.compile(r"\s*(?:(\d{1,18})|\$?\{?([A-Za-z_]\w*)\}?|(\*\*|[-+*/%()]))")
_BLANKS = {" ", "\t", "\n"}
_MAX_DEPTH = 60
_MAX_SOURCED = 4
_ACTIVATES = re.compile(
    r"activate|conda|\.bashrc|profile|/opt/|/etc/|setvars|set_env\.sh$|modules?\b|\bvenv|nvm"
)
_MAX_WORD = 200_000


@dataclass(frozen=True)
class Word:
    """A word of a command after expansion, with its marks."""

    text: str
    line: int

    @property
    def clean(self) -> str:
        """The text without marks."""
        return self.text.replace(SOFT, "")

    @property
    def unknown(self) -> bool:
        """Tells whether nothing of it is known, not even that it is one word."""
        return self.text in {HOLE, GIVEN}

    def value(self, file: str, text: str | None = None) -> Value:
        """The word, or a part of it, as a Value of text."""
        text = self.text if text is None else text
        data = UNKNOWN if HOLE in text else text.replace(SOFT, "")
        return Value(data, Place(file, self.line), soft=SOFT in text, outside=SOFT in text)


@dataclass
class Command:
    """A simple command: its words, and the variables that are set for it or exported before it."""

    words: list[Word]
    environ: dict[str, Value]
    line: int
    # Files that were sourced before it and could not be read.
    unread: tuple[Word, ...] = ()


@dataclass
class _Scope:
    """The variables at one point; text with marks, arrays as lists of words."""

    variables: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[Word]] = field(default_factory=dict)
    exported: dict[str, Value] = field(default_factory=dict)

    def copy(self) -> _Scope:
        return _Scope(dict(self.variables), dict(self.arrays), dict(self.exported))

    def merge(self, branch: _Scope) -> None:
        """Takes over from a branch that may or may not have run what it changed, as unknown."""
        for name, text in branch.variables.items():
            if self.variables.get(name) != text:
                self.variables[name] = HOLE
        for name, words in branch.arrays.items():
            mine = self.arrays.get(name, [])
            if words != mine:
                added = words[len(mine) :] if words[: len(mine)] == mine else words
                self.arrays[name] = mine + [Word(_maybe(word.text), word.line) for word in added]
        for name, value in branch.exported.items():
            if self.exported.get(name) != value:
                self.exported[name] = value.but(UNKNOWN)


def _maybe(text: str) -> str:
    key, equals, _value = text.partition("=")
    return f"{key}={HOLE}" if equals else HOLE


def commands(text: str, file: str, first_line: int = 1) -> list[Command]:
    """Reads a script into its commands.

    Args:
        text: The script.
        file: Where it stands.
        first_line: Its first line there.

    Raises:
        UnreadableError: It is larger than a script is.
    """
    marked = text.translate(dict.fromkeys(range(7), " "))
    reader = _ShellReader(file)
    for each in slurm.asked(text, first_line):
        place = Place(file, each.line)
        reader.scope.variables[each.name] = f"{SOFT}{each.number}"
        reader.scope.exported[each.name] = Value(str(each.number), place, each.name, soft=True, outside=True)
    return reader.read(Lexer(marked, file, first_line).tokens())


def nested(word: Word, file: str) -> list[Command]:
    """The commands of a word that is itself a script, as in `bash -c "..."`."""
    return _ShellReader(file).read(Lexer(word.text, file, max(1, word.line - word.text.count("\n"))).tokens())


class _ShellReader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.scopes = [_Scope()]
        self.found: list[Command] = []
        self.blocks: list[str] = []
        self.written = 0
        self.unread: list[Word] = []
        self.depth = 0

    @property
    def scope(self) -> _Scope:
        return self.scopes[-1]

    def read(self, tokens: list[Token]) -> list[Command]:
        """Walks over the tokens, command by command."""
        start = 0
        while start < len(tokens):
            token = tokens[start]
            if token.kind == "operator" and token.text in _ENDS:
                if token.text in {";;", ";&", ";;&"} and self._inside("case"):
                    self._close_branch()
                    start = self._pattern(tokens, start + 1)
                else:
                    start += 1
                continue
            end = start
            while end < len(tokens) and not (
                tokens[end].kind == "operator" and tokens[end].text in _ENDS and tokens[end].text != "(("
            ):
                end += 1
            start = self._statement(tokens, start, max(end, start + 1))
        return self.found

    def _inside(self, block: str) -> bool:
        return bool(self.blocks) and self.blocks[-1] == block

    def _statement(self, tokens: list[Token], start: int, end: int) -> int:
        """Reads one statement; returns where the next begins."""
        word = _literal(tokens[start])
        if word in _OPENING:
            return self._open(word, tokens, start, end)
        if word in {"then", "do", "else", "elif"}:
            if word in {"else", "elif"}:
                self._close_branch()
            if word != "elif":
                self._open_branch()
            return start + 1
        if word in {"fi", "done", "esac"}:
            self._close_branch()
            if self.blocks:
                self.blocks.pop()
            return start + 1
        if word in {"!", "time", "{", "}"}:
            return start + 1
        self._command(tokens[start:end])
        return end

    def _open(self, word: str, tokens: list[Token], start: int, end: int) -> int:
        self.blocks.append(word)
        if word == "for" and end > start + 1:
            self.scope.variables[_literal(tokens[start + 1])] = HOLE
            return end
        if word == "case":
            return self._pattern(tokens, end)
        return start + 1

    def _pattern(self, tokens: list[Token], start: int) -> int:
        """Goes over the pattern of a case's branch, up to and with its bracket."""
        for position in range(start, len(tokens)):
            if _literal(tokens[position]) == "esac":
                return position
            if tokens[position].kind == "operator" and tokens[position].text == ")":
                self._open_branch()
                return position + 1
        return len(tokens)

    def _open_branch(self) -> None:
        if len(self.scopes) < _MAX_DEPTH:
            self._wrote(0, counted=len(self.scope.variables) + len(self.scope.arrays))
            self.scopes.append(self.scope.copy())

    def _close_branch(self) -> None:
        if len(self.scopes) > 1:
            branch = self.scopes.pop()
            self.scope.merge(branch)

    def _command(self, tokens: list[Token]) -> None:
        """Reads one simple command: assignments before it, words, redirections left out."""
        environ: dict[str, Value] = {}
        words: list[Word] = []
        exporting = False
        for token in _without_redirections(tokens):
            if token.kind == "array":
                self._set_array(token)
                continue
            name = _assigned(token)
            if name and not words:
                self._assign(name, token, environ, exported=exporting)
                continue
            expanded = self._expand(token)
            if not words and expanded and expanded[0].clean in _DECLARING:
                exporting = exporting or expanded[0].clean == "export"
            elif exporting and not words:
                self._export(expanded)
            else:
                words += expanded
        if words and words[0].clean in {"source", "."} and len(words) > 1:
            self._source(words[1])
            return
        if words:
            environ = {**self.scope.exported, **environ}
            self.found.append(Command(words, environ, words[0].line, tuple(self.unread)))
            return
        for variable, value in environ.items():
            if variable in self.scope.exported:
                self.scope.exported[variable] = value

    def _source(self, word: Word) -> None:
        """`source FILE`: its variables are the script's own; an environment made active sets none of a run's."""
        if _ACTIVATES.search(word.clean):
            return
        path = _beside(word.clean, self.file)
        if path is None or self.depth >= _MAX_SOURCED:
            self.unread.append(word)
            return
        try:
            text = given.text(path, MAX_BYTES).translate(dict.fromkeys(range(7), " "))
        except OSError:  # something that is no file of a script's size: not read, as one that is not there
            self.unread.append(word)
            return
        mine, self.file, self.depth = self.file, str(path), self.depth + 1
        try:
            self.read(Lexer(text, str(path)).tokens())
        finally:
            self.file, self.depth = mine, self.depth - 1

    def _export(self, words: list[Word]) -> None:
        """`export NAME` of a variable that has a value."""
        for word in words:
            text = self.scope.variables.get(word.clean)
            if text is not None:
                value = Word(text, word.line).value(self.file)
                self.scope.exported[word.clean] = value.named(word.clean)

    def _set_array(self, token: Token) -> None:
        items = [word for item in token.items for word in self._expand(item)]
        before = self.scope.arrays.get(token.text, []) if token.append else []
        self.scope.arrays[token.text] = before + items
        self._wrote(sum(len(word.text) + 8 for word in items))

    def _assign(
        self, name: tuple[str, bool], token: Token, environ: dict[str, Value], *, exported: bool
    ) -> None:
        text = self._joined(_after_equals(token.pieces)).translate(_RESTORED)
        if name[1]:
            text = self.scope.variables.get(name[0], HOLE) + text
        self._wrote(len(text))
        self.scope.variables[name[0]] = text
        value = Word(text, token.line).value(self.file).named(name[0])
        environ[name[0]] = value
        if exported:
            self.scope.exported[name[0]] = value

    def _wrote(self, size: int, counted: int = 0) -> None:
        """Counts what expansion made, so that a script which doubles a variable line by line is refused."""
        self.written += size + counted
        if size > _MAX_WORD or self.written > MAX_NODES * 100:
            raise UnreadableError(f"{self.file}: its variables expand without end: no script's do")

    def _expand(self, token: Token) -> list[Word]:
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
            self._wrote(sum(len(word.text) + 8 for word in words))
            return [Word(word.text.translate(_RESTORED), word.line) for word in words]
        for piece in token.pieces:
            if piece.kind == "array":
                items = [word.text for word in self.scope.arrays.get(piece.text, [Word(HOLE, token.line)])]
                if items:
                    done += [(current or "") + items[0], *items[1:]]
                    current = done.pop()
                continue
            text = self._text(piece)
            whole = piece.quoted or piece.kind == "text"
            current = (current or "") + text if whole else _split(text, current, done)
        if current is not None:
            done.append(current)
        self._wrote(sum(map(len, done)) + 8 * len(done))
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

    def _text(self, piece: Piece) -> str:
        if piece.kind == "text":
            return piece.text
        if piece.kind == "arithmetic":
            return _calculate(piece.text, self.scope.variables)
        if piece.kind == "array":
            return " ".join(word.text for word in self.scope.arrays.get(piece.text, [Word(HOLE, 0)]))
        if piece.kind != "variable":
            return GIVEN if piece.text in {"@", "*"} else HOLE
        return self._variable(piece)

    def _variable(self, piece: Piece) -> str:
        text = self.scope.variables.get(piece.text)
        operation = piece.operation
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


def _beside(name: str, file: str) -> Path | None:
    """A file that a script names, from its own folder or one above."""
    if HOLE in name or len(name) > 300:
        return None
    start = Path(file).absolute().parent
    for folder in (start, *list(start.parents)[:3]):
        try:
            path = folder / name
            if path.is_file() and path.stat().st_size <= MAX_BYTES:
                return path
        except (OSError, ValueError):
            return None
    return None


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


def _without_redirections(tokens: list[Token]) -> list[Token]:
    kept: list[Token] = []
    skip = False
    for token in tokens:
        if token.kind == "operator":
            skip = token.text in _REDIRECTIONS
        elif skip:
            skip = False
        else:
            kept.append(token)
    return kept


def _literal(token: Token) -> str:
    """A word that is plain text, as keywords are; else nothing."""
    if token.kind != "word" or any(piece.kind != "text" or piece.quoted for piece in token.pieces):
        return ""
    return "".join(piece.text for piece in token.pieces)


def _assigned(token: Token) -> tuple[str, bool] | None:
    if not token.pieces or token.pieces[0].kind != "text" or token.pieces[0].quoted:
        return None
    match = _ASSIGNMENT.match(token.pieces[0].text)
    return (match[1], bool(match[2])) if match else None


def _after_equals(pieces: list[Piece]) -> list[Piece]:
    first = pieces[0].text.partition("=")[2]
    return [Piece("text", first), *pieces[1:]]


def _calculate(expression: str, variables: dict[str, str]) -> str:
    """The value of whole-number arithmetic, or a hole."""
    soft = ""
    tokens: list[str] = []
    at = 0
    while at < len(expression) and len(tokens) < 200:
        match = _ARITHMETIC.match(expression, at)
        if match is None:
            return "" if not expression.strip() else HOLE if expression[at:].strip() else _value(tokens, soft)
        at = match.end()
        if match[2]:
            text = variables.get(match[2], HOLE)
            soft = soft or (SOFT if SOFT in text else "")
            number = text.replace(SOFT, "").strip()
            if not (number.isascii() and number.isdecimal() and len(number) <= 18):
                return HOLE
            tokens.append(number)
        else:
            tokens.append(match[1] or match[3])
    return _value(tokens, soft)


def _value(tokens: list[str], soft: str) -> str:
    try:
        value, rest = _sum(tokens, 0, 0)
    except (ValueError, ZeroDivisionError, IndexError):
        return HOLE
    return f"{soft}{value}" if rest == len(tokens) and abs(value) < 10**18 else HOLE


def _sum(tokens: list[str], at: int, depth: int) -> tuple[int, int]:
    value, at = _product(tokens, at, depth)
    while at < len(tokens) and tokens[at] in "+-":
        other, after = _product(tokens, at + 1, depth)
        value = value + other if tokens[at] == "+" else value - other
        at = after
    return value, at


def _product(tokens: list[str], at: int, depth: int) -> tuple[int, int]:
    value, at = _factor(tokens, at, depth)
    while at < len(tokens) and tokens[at] in {"*", "/", "%"}:
        other, after = _factor(tokens, at + 1, depth)
        if tokens[at] == "*":
            value *= other
        elif tokens[at] == "/":
            # The shell's division goes towards zero.
            value = abs(value) // abs(other) * (1 if (value < 0) == (other < 0) else -1)
        else:
            value = abs(value) % abs(other) * (1 if value >= 0 else -1)
        if abs(value) >= 10**18:
            raise ValueError("too large")
        at = after
    return value, at


def _factor(tokens: list[str], at: int, depth: int) -> tuple[int, int]:
    if depth > 50:
        raise ValueError("nested too deep")
    first = tokens[at]
    if first == "(":
        value, at = _sum(tokens, at + 1, depth + 1)
        if tokens[at] != ")":
            raise ValueError("a bracket is open")
        return value, at + 1
    if first == "-":
        value, at = _factor(tokens, at + 1, depth + 1)
        return -value, at
    return int(first), at + 1
