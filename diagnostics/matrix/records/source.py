"""The text of a Python file without its comments and docstrings: what is left is what can change an answer."""

from __future__ import annotations

import ast
import io
import tokenize
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# (line, column) to (line, column), counted as `tokenize` does: lines from 1, columns in characters.
Span = tuple[tuple[int, int], tuple[int, int]]


def without_words(text: str, tree: ast.Module) -> str:
    """Returns the text without comments, docstrings and empty lines.

    Cut out of the text and not printed from the tree, so that it is the same by every release of Python.

    >>> text = 'def f():  # why' + chr(10) + '    "Says."' + chr(10) * 2 + '    return 1' + chr(10)
    >>> print(without_words(text, ast.parse(text)))
    def f():
        return 1
    """
    lines = text.splitlines(keepends=True)
    cut: dict[int, list[tuple[int, int]]] = {}
    for (first, start), (last, end) in (*_comments(text), *_docstrings(tree, lines)):
        for number in range(first, last + 1):
            from_ = start if number == first else 0
            to = end if number == last else len(lines[number - 1])
            cut.setdefault(number, []).append((from_, to))
    inside = {number for node in _long_strings(tree) for number in range(node[0] + 1, node[1] + 1)}
    kept = []
    for number, line in enumerate(lines, start=1):
        left = line
        for from_, to in sorted(cut.get(number, ()), reverse=True):
            left = left[:from_] + left[to:]
        if number in cut or number not in inside:
            left = left.rstrip()
        if left or (number in inside and number not in cut):
            kept.append(left.rstrip("\r\n"))
    return "\n".join(kept)


def _comments(text: str) -> Iterator[Span]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start, token.end


def _docstrings(tree: ast.Module, lines: list[str]) -> Iterator[Span]:
    """Yields where strings stand that nothing is done with: of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            first, last = node.lineno, node.end_lineno or node.lineno
            yield (
                (first, _column(lines[first - 1], node.col_offset)),
                (last, _column(lines[last - 1], node.end_col_offset or 0)),
            )


def _column(line: str, offset: int) -> int:
    """Returns the column in characters of one in bytes."""
    return len(line.encode()[:offset].decode())


def _long_strings(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Yields first and last line of the strings that go over several lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr | ast.Constant) and node.end_lineno not in {None, node.lineno}:
            yield node.lineno, node.end_lineno or node.lineno
