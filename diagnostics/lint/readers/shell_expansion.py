"""Expand the words of a shell script, parsed by tree-sitter, as far as their values are known.

`$X`, `${X:-default}`, arrays and arithmetic are expanded; so are the few commands whose output follows from the script
(`dirname`, `pwd`, counting a list). Every unknown part becomes the mark HOLE.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tree_sitter import Node

from diagnostics.lint.readers.shell_scope import HOLE, SCRIPT_ARGUMENTS, SOFT, Scope, Word, mark_default
from diagnostics.lint.readers.structured import MAX_NODES, UnreadableError

SCRIPT_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch")
_MAX_WORD = 200_000
_MAX_DEPTH = 50
_LARGEST = 10**18
_EXPANSIONS = {"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"}
_NOT_EXPANDED = {"process_substitution", "brace_expression", "ansi_c_string", "ERROR"}
_OPERATORS = {":-", "-", ":=", "=", ":+", "+", ":?", "?"}
_CONTINUATION = re.compile(r"\\\r?\n")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\(["\\$`])')
# `echo $GPUS | tr ',' '\n' | wc -l`: the number of items in a list.
_COUNTS_ITEMS = re.compile(
    r"""\|\s*(?:
        tr\s+(?:-s\s+)?['"]?,['"]?\s+['"](?:\\n|\n|\s)['"]\s*\|\s*wc\s+-[lw]
      | awk\s+-F\s*['"]?,['"]?\s+['"]\{\s*print\s+NF;?\s*\}['"]
    )\s*[)`]?$""",
    re.VERBOSE,
)
_PATH_OPTIONS = {"--", "-P", "-f", "-e", "-m", "-n"}


@dataclass(frozen=True)
class Fragment:
    """A part of a word.

    Attributes:
        text: Its text, with marks.
        quoted: It is not split at blanks.
        line: The line of an array's item; 0 for the line of the expansion.
        ends_word: It separates the items of an array.
    """

    text: str
    quoted: bool = False
    line: int = 0
    ends_word: bool = False


_UNKNOWN = Fragment(HOLE, quoted=True)


def node_text(node: Node) -> str:
    """Return the source text of a node."""
    return (node.text or b"").decode("utf-8", "replace")


class Expander:
    """Expands the words of one script with the variables known at that point.

    Attributes:
        file: The file whose words are read; `main` is the script that was started.
        first_line: The file's line on which the text begins.
        scopes: The innermost branch last.
    """

    def __init__(self, file: str, first_line: int = 1) -> None:
        self.file = self.main = file
        self.first_line = first_line
        self.scopes = [Scope()]
        self._produced = 0

    @property
    def scope(self) -> Scope:
        """The innermost scope."""
        return self.scopes[-1]

    def line_of(self, node: Node) -> int:
        """Return the line of the file on which a node begins."""
        return int(node.start_point[0]) + self.first_line

    def count_output(self, size: int) -> None:
        """Count expanded text, so that a script which doubles a variable line by line is refused."""
        self._produced += size
        if size > _MAX_WORD or self._produced > MAX_NODES * 100:
            raise UnreadableError(f"{self.file}: its variables expand without end")

    def expand_words(self, *nodes: Node) -> list[Word]:
        """Expand nodes into words; an unquoted value is split at blanks, and adjacent nodes are one word."""
        words: list[Word] = []
        fragments: list[Fragment] = []
        line, end = 0, -1
        for node in nodes:
            if node.start_byte != end:
                words += self._to_words(fragments, line)
                fragments, line = [], self.line_of(node)
            fragments += self.fragments(node)
            end = node.end_byte
        return words + self._to_words(fragments, line)

    def _to_words(self, fragments: list[Fragment], first_line: int) -> list[Word]:
        words: list[Word] = []
        text, line = None, first_line
        for fragment in fragments:
            if fragment.ends_word:
                words.append(Word(text or "", line))
                text = None
                continue
            if text is None:
                line = fragment.line or first_line
            if fragment.quoted:
                text = (text or "") + fragment.text
                continue
            *complete, text = _split(fragment.text, text)
            words += [Word(part, line) for part in complete if part is not None]
        if text is not None:
            words.append(Word(text, line))
        self.count_output(sum(len(word.text) + 8 for word in words))
        return words

    def expand_text(self, node: Node) -> str:
        """Expand a node into one text, as an assignment does."""
        return self._join(self.fragments(node))

    def _join(self, fragments: Iterable[Fragment]) -> str:
        return "".join(" " if fragment.ends_word else fragment.text for fragment in fragments)

    def fragments(
        self, node: Node, *, quoted: bool = False, splits: bool = False, depth: int = 0
    ) -> list[Fragment]:
        """Expand a node into fragments.

        Args:
            node: A word, a string, an expansion or a concatenation of these.
            quoted: The node is in double quotes.
            splits: The node is in an unquoted default, whose plain text is split at blanks like any value.
            depth: How deep it is nested.
        """
        kind, start, end = node.type, node.start_byte, node.end_byte
        if depth > _MAX_DEPTH or kind in _NOT_EXPANDED:
            return [_UNKNOWN]
        if kind in _EXPANSIONS:
            return self._expansion(node, quoted=quoted, depth=depth)
        if kind == "raw_string":
            return [Fragment(node_text(node)[1:-1], quoted=True)]
        if kind == "string":
            inner = self._expand_range(node, start + 1, end - 1, quoted=True, depth=depth)
            children = node.named_children
            # "${A[@]}" of an empty array is no word; any other empty string is one.
            only_child = len(children) == 1 and end - start - 2 == len(children[0].text or b"")
            return inner if inner or only_child else [Fragment("", quoted=True)]
        if kind in {"concatenation", "command_name"}:
            return self._expand_range(node, start, end, quoted=quoted, splits=splits, depth=depth)
        return _literal(node_text(node), quoted=quoted, splits=splits)

    def _expand_range(
        self, node: Node, start: int, end: int, *, quoted: bool, depth: int, splits: bool = False
    ) -> list[Fragment]:
        """Expand the children of a node in a range of bytes; the text between them stays as it is."""
        source, offset = node.text or b"", node.start_byte

        def literal(first: int, last: int) -> list[Fragment]:
            text = source[first - offset : last - offset].decode("utf-8", "replace")
            return _literal(text, quoted=quoted, splits=splits) if text else []

        fragments: list[Fragment] = []
        at = start
        for child in node.named_children:
            plain = child.type in {"string_content", "heredoc_content"}
            if child.start_byte < at or child.end_byte > end or plain:
                continue
            fragments += literal(at, child.start_byte)
            fragments += self.fragments(child, quoted=quoted, splits=splits, depth=depth + 1)
            at = child.end_byte
        return fragments + literal(at, end)

    def _expansion(self, node: Node, *, quoted: bool, depth: int) -> list[Fragment]:
        if node.type == "command_substitution":
            output = self._command_output(node)
            return [Fragment(HOLE if output is None else output, quoted)]
        if node.type == "arithmetic_expansion":
            return [Fragment(self._arithmetic(node), quoted)]
        name, subscript, operator = "", None, ""
        for child in node.children:
            if child.type in {"variable_name", "special_variable_name"} and not name:
                name = node_text(child)
            elif child.type == "subscript" and not name:
                name, subscript = node_text(child.children[0]), node_text(child)[:-1].partition("[")[2]
            elif child.type not in {"$", "${", "}"}:
                operator = operator or child.type
        if subscript in {"@", "*"} or (name in {"@", "*"} and subscript is None):
            return self._array(name, operator, quoted=quoted, joined=quoted and "*" in {name, subscript})
        if subscript is not None:
            return [Fragment(self._array_item(name, subscript, operator), quoted)]
        if operator in _OPERATORS:
            return self._default(node, name, operator, quoted=quoted, depth=depth)
        return [Fragment(HOLE if operator else self._variable(name), quoted)]

    def _array(self, name: str, operator: str, *, quoted: bool, joined: bool) -> list[Fragment]:
        """Expand all items of an array, or count them."""
        name = "@" if name == "*" else name
        words = self.scope.arrays.get(name)
        if operator == "#":
            known = words is not None and not any(word.is_unknown for word in words)
            mark = SOFT if any(SOFT in word.text for word in words or ()) else ""
            return [Fragment(mark + str(len(words or ())) if known else HOLE, quoted)]
        if operator and not (name == "@" and words is None and operator == ":"):
            return [_UNKNOWN]
        if words is None:
            return [Fragment(SCRIPT_ARGUMENTS if name == "@" else HOLE, quoted=True)]
        if joined:
            return [Fragment(" ".join(word.text for word in words), quoted=True)]
        fragments: list[Fragment] = []
        for word in words:
            fragments += [Fragment("", ends_word=True)] if fragments else []
            fragments.append(Fragment(word.text, quoted=True, line=word.line))
        return fragments

    def _array_item(self, name: str, subscript: str, operator: str) -> str:
        """Return the text of `${NAME[SUBSCRIPT]}`; HOLE if it is not known."""
        if name == "BASH_SOURCE":
            return _absolute(self.file)
        words = self.scope.arrays.get(name)
        if operator or words is None or not subscript.isdecimal() or any(word.is_unknown for word in words):
            return HOLE
        return words[int(subscript)].text if len(subscript) < 5 and int(subscript) < len(words) else ""

    def _variable(self, name: str) -> str:
        text = self.scope.variables.get(name)
        if text is None and name in {"0", "BASH_SOURCE"}:
            return _absolute(self.main if name == "0" else self.file)
        return HOLE if text is None else text

    def _default(self, node: Node, name: str, operator: str, *, quoted: bool, depth: int) -> list[Fragment]:
        """Expand `${NAME:-default}`, and the same with `=`, `+` or `?`."""
        text = self.scope.variables.get(name)
        if operator in {"?", ":?"} or (text is None and name in self.scope.arrays):
            return [Fragment(HOLE if text is None else text, quoted)]
        empty = text is None or (operator.startswith(":") and not text.replace(SOFT, ""))
        alternative = operator.endswith("+")
        if alternative and not empty and HOLE in (text or ""):
            return [Fragment(HOLE, quoted)]
        if empty == alternative:
            return [Fragment(SOFT if alternative else text or "", quoted)]
        sign = next(child for child in node.children if child.type == operator)
        rest = self._expand_range(
            node, sign.end_byte, node.end_byte - 1, quoted=quoted, splits=not quoted, depth=depth
        )
        fragments = [replace(fragment, text=SOFT + fragment.text) for fragment in rest]
        fragments = fragments or [Fragment(SOFT, quoted)]
        if operator.endswith("="):
            self.scope.variables[name] = mark_default(self._join(fragments).replace(SOFT, ""))
        return fragments

    def heredoc(self, body: Node) -> str:
        """Expand the body of an unquoted here-document; unknown variables keep their `$NAME`."""
        parts: list[str] = []
        at, source, offset = body.start_byte, body.text or b"", body.start_byte
        for child in body.named_children:
            if child.type not in _EXPANSIONS:
                continue
            parts.append(source[at - offset : child.start_byte - offset].decode("utf-8", "replace"))
            parts.append(self._join(self._expansion(child, quoted=True, depth=0)))
            at = child.end_byte
        parts.append(source[at - offset :].decode("utf-8", "replace"))
        text = "".join(parts)
        self.count_output(len(text))
        return re.sub(r"\\([$`\\])", r"\1", text)

    def _arithmetic(self, node: Node) -> str:
        """Evaluate whole-number arithmetic as the shell does."""
        inner = [child for child in node.named_children if child.type != "comment"]
        if not inner:
            return ""
        soft: list[str] = []
        try:
            value = self._number(inner[0], soft, 0) if len(inner) == 1 else None
        except (ZeroDivisionError, OverflowError):
            value = None
        return HOLE if value is None else f"{soft[0] if soft else ''}{value}"

    def _number(self, node: Node, soft: list[str], depth: int) -> int | None:
        kind, children = node.type, node.children
        if depth > _MAX_DEPTH:
            return None
        if kind in {"number", "word", "variable_name", "simple_expansion", "expansion"}:
            text = node_text(node)
            if kind != "number" and not text.isdecimal():
                if kind in {"word", "variable_name"}:
                    text = self._variable(text)
                else:
                    text = self._join(self._expansion(node, quoted=True, depth=depth))
            if SOFT in text:
                soft.append(SOFT)
            text = text.replace(SOFT, "").strip()
            return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None
        if kind == "parenthesized_expression" and len(children) == 3:
            return self._number(children[1], soft, depth + 1)
        if kind == "binary_expression" and len(children) == 3:
            numbers = [self._number(child, soft, depth + 1) for child in (children[0], children[2])]
            return None if None in numbers else _calculate(numbers[0] or 0, children[1].type, numbers[1] or 0)
        return None

    def _command_output(self, node: Node) -> str | None:
        """Return the output of a command substitution, for the few commands whose output is known."""
        source = node_text(node)
        commands = list(_commands_in(node))
        if not commands or len(source) > 2000:
            return None
        if not _COUNTS_ITEMS.search(source):
            return self._path_output(commands)
        program, *words = [
            word.text for child in commands[0].named_children for word in self.expand_words(child)
        ]
        text = " ".join(words)
        if program != "echo" or not words or HOLE in text:
            return None
        return (SOFT if SOFT in text else "") + str(text.strip().count(",") + 1)

    def _path_output(self, commands: list[Node]) -> str | None:  # noqa: PLR0911 - one line per command
        """Return the output of `cd DIR && pwd`, `dirname FILE` and `realpath FILE`."""
        folder: str | None = None
        for command in commands:
            name, *rest = [self.expand_text(child) for child in command.named_children]
            rest = [text for text in rest if text not in _PATH_OPTIONS]
            if name == "pwd" and folder is not None and not rest:
                return folder
            if len(rest) != 1 or re.search("[\0-\6]", rest[0]):
                return None
            if name == "cd":
                folder = os.path.normpath(os.path.join(folder or "", rest[0]))  # noqa: PTH118 - the text of a path
                if not folder.startswith("/"):
                    return None
            elif name == "dirname" and folder is None:
                return os.path.dirname(rest[0]) or "."  # noqa: PTH120 - the text of a path
            elif name in {"realpath", "readlink"} and folder is None and rest[0].startswith("/"):
                return os.path.normpath(rest[0])
            else:
                return None
        return None


def _commands_in(node: Node) -> Iterator[Node]:
    """Yield the simple commands of a substitution, without those nested in their words."""
    for child in node.named_children:
        if child.type == "command":
            yield child
        elif child.type not in _EXPANSIONS | {"string", "word"}:
            yield from _commands_in(child)


def _calculate(left: int, operator: str, right: int) -> int | None:
    if operator in {"/", "%"}:
        # The shell's division rounds towards zero.
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if operator == "/" else left - quotient * right
    results = {"+": left + right, "-": left - right, "*": left * right}
    value = results.get(operator)
    return value if value is not None and abs(value) < _LARGEST else None


def _literal(text: str, *, quoted: bool, splits: bool) -> list[Fragment]:
    """Return plain text as fragments without backslashes; an escaped blank does not split the text."""
    text = _CONTINUATION.sub("", text)
    if quoted or not splits:
        return [Fragment((_ESCAPED_IN_QUOTES if quoted else _ESCAPED).sub(r"\1", text), quoted=True)]
    parts = _ESCAPED.split(text)
    return [Fragment(part, quoted=number % 2 == 1) for number, part in enumerate(parts) if part]


def _split(text: str, current: str | None) -> list[str | None]:
    """Split unquoted text at blanks; the last item is the word that is still open."""
    soft = SOFT if SOFT in text else ""
    bare = text.replace(SOFT, "")
    if not bare.strip(" \t\n"):
        return [current, None] if bare else [current]
    parts: list[str | None] = [soft + part for part in re.split(r"[ \t\n]+", bare.strip(" \t\n"))]
    if bare[0] in " \t\n":
        parts.insert(0, current)
    elif current is not None:
        parts[0] = current + (parts[0] or "")
    if bare[-1] in " \t\n":
        parts.append(None)
    return parts


def _absolute(file: str) -> str:
    """Return the absolute path of a script, if it is a file."""
    path = Path(file)
    return str(path.absolute()) if path.suffix in SCRIPT_SUFFIXES else HOLE
