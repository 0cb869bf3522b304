"""Expand the words of a shell script, parsed by tree-sitter, as far as their values are known.

`$X`, `${X:-default}`, arrays, arithmetic and `$(dirname "$0")` are expanded. Every unknown part becomes the mark HOLE.
"""

from __future__ import annotations

import ast
import operator
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tree_sitter import Node

from diagnostics.lint.readers.shell_scope import HOLE, SCRIPT_ARGUMENTS, SOFT, Scope, Word, mark_default
from diagnostics.lint.readers.structured import MAX_NODES, UnreadableError

SCRIPT_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch")
_MAX_WORD = 200_000
_MAX_DEPTH = 50
_LARGEST = 10**9
_EXPANSIONS = {"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"}
_NOT_EXPANDED = {"process_substitution", "brace_expression", "ansi_c_string", "ERROR"}
_OPERATORS = {":-", "-", ":=", "=", ":+", "+", ":?", "?"}
_NAME = re.compile(r"[A-Za-z_]\w*")
_CONTINUATION = re.compile(r"\\\r?\n")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\(["\\$`])')
_ARITHMETIC = re.compile(r"[\d\s()+*/%-]{1,500}")
# `$(dirname "$0")`, also of a linked script, with a folder above or below, and `cd ... && pwd` around it.
_SCRIPT_FOLDER = re.compile(
    r"""[$(`]+(?:(?:cd|realpath|readlink\ -f)\s+(?:--\s+)?"?\$\()?dirname\s+(?:--\s+)?"?
        (?:\$\((?:realpath|readlink\ -f)\s+"?)?\$\{?(0|BASH_SOURCE)(?:\[0\])?\}?"?\)?"?\)?((?:/[\w.-]+)*)"?\s*
        (?:>\s*/dev/null\s*)?(?:2>&1\s*)?(?:(?:&&|;)\s*pwd(?:\s+-P)?)?\s*[)"`]*""",
    re.VERBOSE,
)


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
        if kind in {"concatenation", "command_name", "binary_expression", "parenthesized_expression"}:
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
            return [Fragment(self._command_output(node), quoted)]
        if node.type == "arithmetic_expansion":
            return [Fragment(self._arithmetic(node, depth), quoted)]
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

    def _arithmetic(self, node: Node, depth: int) -> str:
        """Evaluate whole-number arithmetic as the shell does."""
        source = self._expand_range(node, node.start_byte + 3, node.end_byte - 2, quoted=True, depth=depth)
        text = _NAME.sub(lambda match: self._variable(match[0]), self._join(source))
        try:
            value = _calculate(text.replace(SOFT, ""))
        except (ArithmeticError, SyntaxError, MemoryError, RecursionError):
            return HOLE
        return f"{SOFT if SOFT in text else ''}{value}"

    def _command_output(self, node: Node) -> str:
        """Return the output of a command substitution: the script's folder, or unknown."""
        source = node_text(node)
        match = _SCRIPT_FOLDER.fullmatch(source) if len(source) < 300 else None
        script = _absolute(self.main if match[1] == "0" else self.file) if match else HOLE
        return (
            HOLE if match is None or script == HOLE else os.path.normpath(str(Path(script).parent) + match[2])
        )


def _divide(left: int, right: int) -> int:
    """Divide as the shell does, which rounds towards zero."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


_FUNCTIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.Mod: lambda left, right: left - _divide(left, right) * right,
}


def _calculate(text: str) -> int:
    if not _ARITHMETIC.fullmatch(text):
        raise SyntaxError(text)
    return _evaluate(ast.parse(text.strip(), mode="eval").body)


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant):
        return int(node.value)  # type: ignore[arg-type]
    function = _FUNCTIONS.get(type(node.op)) if isinstance(node, ast.BinOp) else None
    if not isinstance(node, ast.BinOp) or function is None:
        raise SyntaxError(ast.dump(node))
    left, right = _evaluate(node.left), _evaluate(node.right)
    if max(abs(left), abs(right)) > _LARGEST:
        raise OverflowError
    return function(left, right)


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
