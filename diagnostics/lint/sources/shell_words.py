"""A shell script as words and operators: quotes, continuations, comments, here-documents, arrays.

A word is a list of pieces: literal text, a variable with its operation, arithmetic, or something that only running
it would tell. Lines are those of the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from diagnostics.lint.sources.tree import MAX_NODES, UnreadableError

# Marks within a word, which no script can contain: here something unknown stood; this comes from a default.
HOLE, SOFT = "\0", "\1"
# What a script is itself given, "$@": a hole that is empty unless somebody fills it.
GIVEN = "\6" + HOLE
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = re.compile(r"[^\s\\'\"$`;&|<>()#]+")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=$")
_OPERATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|&>>|&>|<<<|<<-|<<|>>|>&|<&|>\||[;&|<>()]")
_BRACED = re.compile(
    r"(?P<bang>[!#]?)(?P<name>[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])(?P<index>\[[^\]]*\])?(?P<op>:?[-=+?])?"
)
_SLICE = re.compile(r":\s*\d+(?::\s*\d+)?")
_MAX_NESTING = 40


@dataclass(frozen=True)
class Piece:
    """A part of a word.

    Attributes:
        kind: `text`, `variable`, `array` (all of one), `count` and `item` of one, `arithmetic`, `command` or `unknown`.
        text: The text, the name, the expression, or the command whose output stands there.
        quoted: It stands in double quotes, so that its value is not split into words.
        operation: Of a variable: `:-`, `-`, `:=`, `:+` and so on; of an item: its place.
        other: The pieces of the default, or of the alternative.
    """

    kind: str
    text: str = ""
    quoted: bool = False
    operation: str = ""
    other: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class Here:
    """What stands between `<<END` and `END`; quoted, so that the shell puts nothing into it."""

    text: str
    line: int
    quoted: bool


@dataclass
class Token:
    """A word, an operator, or an array that is assigned; a here-document is with its operator."""

    kind: str
    line: int
    text: str = ""
    pieces: list[Piece] = field(default_factory=list)
    items: list[Token] = field(default_factory=list)
    append: bool = False
    here: Here | None = None


class Lexer:
    """Reads tokens from a script's text."""

    def __init__(self, text: str, file: str, first_line: int = 1) -> None:
        self.text, self.file = text, file
        self.at, self.line = 0, first_line
        self.heredocs: list[tuple[Token, Token, bool]] = []
        self.made = 0

    def tokens(self) -> list[Token]:
        """All tokens of the text.

        Raises:
            UnreadableError: It has more of them than a script has.
        """
        found = []
        while (token := self.token()) is not None:
            found.append(token)
        return found

    def token(self) -> Token | None:
        """The next token; None at the end."""
        self._blank()
        if self.at >= len(self.text):
            return None
        self.made += 1
        if self.made > MAX_NODES:
            raise UnreadableError(f"{self.file}:{self.line}: more than {MAX_NODES} words: no script has them")
        if self.text[self.at] == "\n":
            token = Token("operator", self.line, "\n")
            self._newline()
            return token
        if match := _OPERATOR.match(self.text, self.at):
            return self._operator(match[0])
        return self._word()

    def _blank(self) -> None:
        text = self.text
        while self.at < len(text):
            if text[self.at] in " \t\r\f\v":
                self.at += 1
            elif text.startswith(("\\\n", "\\\r\n"), self.at):
                self.at = text.index("\n", self.at) + 1
                self.line += 1
            elif text[self.at] == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            else:
                return

    def _newline(self) -> None:
        self.at += 1
        self.line += 1
        for token, closing, indented in self.heredocs:
            word = "".join(piece.text for piece in closing.pieces)
            quoted = any(piece.quoted for piece in closing.pieces)
            first, lines = self.line, list[str]()
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end].rstrip("\r")
                self.at = min(end + 1, len(self.text))
                self.line += 1
                if (line.lstrip("\t") if indented else line) == word:
                    break
                lines.append(line)
            token.here = Here("\n".join(lines) + "\n", first, quoted)
        self.heredocs.clear()

    def _operator(self, operator: str) -> Token:
        token = Token("operator", self.line, operator)
        self.at += len(operator)
        if operator in {"<<", "<<-"}:
            self._blank()
            if self.at < len(self.text) and self.text[self.at] not in "\n;&|<>()":
                self.heredocs.append((token, self._word(), operator == "<<-"))
        elif operator == "(" and self.text.startswith("(", self.at):
            # (( ... )): arithmetic as a command; nothing in it is a setting.
            inside = self._balanced("(", ")")
            self._balanced_end()
            token.text, token.pieces = "((", [Piece("text", inside)]
        return token

    def _balanced_end(self) -> None:
        if self.text.startswith(")", self.at):
            self.at += 1

    def _word(self) -> Token:
        token = Token("word", self.line)
        while self.at < len(self.text):
            if match := _PLAIN.match(self.text, self.at):
                token.pieces.append(Piece("text", match[0]))
                self.at = match.end()
                continue
            char = self.text[self.at]
            if char == "#":
                token.pieces.append(Piece("text", "#"))
                self.at += 1
            elif char in " \t\r\f\v\n;&|<>)":
                break
            elif char == "(":
                if not self._array(token):
                    break
            elif self.text.startswith(("\\\n", "\\\r\n"), self.at):
                self.at = self.text.index("\n", self.at) + 1
                self.line += 1
            else:
                token.pieces += self._quoted(char)
        return token

    def _array(self, token: Token) -> bool:
        """Reads `NAME=( ... )` into the token; tells whether that's what it is."""
        literal = "".join(piece.text for piece in token.pieces if piece.kind == "text")
        name = _ASSIGNED.fullmatch(literal)
        if name is None or len(literal) != sum(len(piece.text) for piece in token.pieces):
            return False
        self.at += 1
        token.kind, token.text, token.append = "array", name[1], bool(name[2])
        while (item := self.token()) is not None and item.text != ")":
            if item.kind == "word":
                token.items.append(item)
        return True

    def _quoted(self, char: str) -> list[Piece]:
        if char == "\\":
            escaped = self.text[self.at + 1 : self.at + 2]
            self.at += 2
            return [Piece("text", escaped, quoted=True)]
        if char == "'":
            end = self.text.find("'", self.at + 1)
            end = len(self.text) if end < 0 else end
            text = self.text[self.at + 1 : end]
            self.line += text.count("\n")
            self.at = end + 1
            return [Piece("text", text, quoted=True)]
        if char == '"':
            return self._double()
        return [self.dollar(quoted=False)]

    def _double(self) -> list[Piece]:
        pieces = [Piece("text", "", quoted=True)]
        self.at += 1
        start = self.at
        while self.at < len(self.text) and self.text[self.at] != '"':
            char = self.text[self.at]
            if char == "\n":
                self.line += 1
                self.at += 1
            elif char == "\\":
                follows = self.text[self.at + 1 : self.at + 2]
                pieces.append(Piece("text", self.text[start : self.at], quoted=True))
                if follows == "\n":
                    self.line += 1
                else:
                    kept = follows if follows in '"\\$`' else f"\\{follows}"
                    pieces.append(Piece("text", kept, quoted=True))
                self.at += 2
                start = self.at
            elif char in "$`":
                pieces.append(Piece("text", self.text[start : self.at], quoted=True))
                pieces.append(self.dollar(quoted=True))
                start = self.at
            else:
                self.at += 1
        pieces.append(Piece("text", self.text[start : self.at], quoted=True))
        self.at += 1
        return pieces

    def dollar(self, *, quoted: bool = True) -> Piece:  # noqa: PLR0911 - one line a case
        """Reads what a `$` or a backquote begins."""
        text = self.text
        if text[self.at] == "`":
            end = text.find("`", self.at + 1)
            end = len(text) if end < 0 else end
            inside = text[self.at + 1 : end]
            self.line += inside.count("\n")
            self.at = end + 1
            return Piece("command", inside, quoted)
        self.at += 1
        if text.startswith("((", self.at):
            self.at += 1
            inside = self._balanced("(", ")")
            self._balanced_end()
            return Piece("arithmetic", inside, quoted)
        if text.startswith("(", self.at):
            return Piece("command", self._balanced("(", ")"), quoted)
        if text.startswith("{", self.at):
            return braced(self._balanced("{", "}"), quoted=quoted)
        if text.startswith("'", self.at) and not quoted:
            end = text.find("'", self.at + 1)
            end = len(text) if end < 0 else end
            value = text[self.at + 1 : end].replace("\\n", "\n").replace("\\t", "\t")
            self.line += text.count("\n", self.at, end)
            self.at = end + 1
            return Piece("text", value, quoted=True)
        if match := _NAME.match(text, self.at):
            self.at = match.end()
            return Piece("variable", match[0], quoted)
        if self.at < len(text) and text[self.at] in "0123456789@*#?$!-":
            self.at += 1
            return _special(text[self.at - 1], quoted=quoted)
        return Piece("text", "$", quoted=True)

    def _balanced(self, opening: str, closing: str) -> str:
        """Skips from an opening bracket to its closing one; returns what is between."""
        start = self.at + 1
        depth, quote = 0, ""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\n":
                self.line += 1
            if char == "\\":
                self.at += 1
            elif quote:
                quote = "" if char == quote else quote
            elif char in "'\"":
                quote = char
            elif char == opening:
                depth += 1
            elif char == closing:
                depth -= 1
                if depth == 0:
                    self.at += 1
                    return self.text[start : self.at - 1]
            self.at += 1
        return self.text[start:]


def _special(name: str, *, quoted: bool) -> Piece:
    """`$@`, `$1`, `$#` and their like."""
    if name in {"@", "*"}:
        return Piece("array", "@", quoted)
    return Piece("variable" if name.isdigit() else "unknown", name, quoted)


def braced(inside: str, *, quoted: bool, nesting: int = 0) -> Piece:  # noqa: PLR0911 - one line a case
    """Reads what stands in `${...}`."""
    match = _BRACED.match(inside)
    if match is None or nesting > _MAX_NESTING:
        return Piece("unknown", quoted=quoted)
    rest = inside[match.end() :]
    name, whole = match["name"], match["index"] in {"[@]", "[*]"}
    if match["bang"] == "#" and whole and not rest:
        return Piece("count", name, quoted)
    if name in {"@", "*"} or (name.isdigit() and not (match["bang"] or match["index"])):
        if name.isdigit() and match["op"]:
            return Piece("variable", name, quoted, match["op"], _pieces(rest, nesting + 1))
        if not match["bang"] and (not rest or _SLICE.fullmatch(rest)):
            return _special(name, quoted=quoted) if not rest else Piece("unknown", name, quoted)
        return Piece("unknown", quoted=quoted)
    if match["bang"] or not _NAME.fullmatch(match["name"]) or (rest and not match["op"]):
        return Piece("unknown", quoted=quoted)
    if match["index"]:
        if match["index"][1:-1].isdigit() and not match["op"]:
            return Piece("item", name, quoted, match["index"][1:-1])
        return Piece("array" if whole and not match["op"] else "unknown", name, quoted)
    other = _pieces(rest, nesting + 1) if match["op"] else ()
    return Piece("variable", match["name"], quoted, match["op"] or "", other)


def _pieces(text: str, nesting: int) -> tuple[Piece, ...]:
    """The pieces of a default: text, variables and arithmetic, quotes taken off."""
    lexer = Lexer(text, "")
    found: list[Piece] = []
    while lexer.at < len(text):
        start = lexer.at
        if text.startswith("${", start):
            lexer.at += 1
            found.append(braced(lexer._balanced("{", "}"), quoted=False, nesting=nesting))  # noqa: SLF001
        elif text[start] in "\\'\"$`":
            found += lexer._quoted(text[start])  # noqa: SLF001
        else:
            end = next((i for i in range(start, len(text)) if text[i] in "\\'\"$`"), len(text))
            found.append(Piece("text", text[start:end]))
            lexer.at = end
    return tuple(found)
