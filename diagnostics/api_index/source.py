"""Parse source files of other packages, and return texts of nodes.

`expression_text`, `dotted_name` and `constant_texts` return texts of nodes; `statements_in` yields nested statements.
"""

import ast
import itertools
from collections.abc import Iterable, Iterator

# Longer texts are shortened anyway; each part has at least one character, not counting the contexts of names.
TOO_LONG = "…"
_MOST_PARTS = 1000
_MOST_FSTRINGS = 5


def parse_source(text: str) -> ast.Module:
    """Return the syntax tree of a source file.

    Raises:
        SyntaxError: This Python version cannot parse the file.
    """
    try:
        return ast.parse(text)
    except (RecursionError, MemoryError, ValueError) as error:
        raise SyntaxError(f"cannot be parsed: {type(error).__name__}: {error}") from None


def constant_texts(nodes: Iterable[ast.AST | None]) -> Iterator[str]:
    """Yield the values of those expressions that are constant strings."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def statements_in(body: Iterable[ast.stmt], opaque: tuple[type[ast.stmt], ...] = ()) -> Iterator[ast.stmt]:
    """Yield statements and the statements inside them, except those inside of `opaque` ones."""
    for node in body:
        yield node
        if not isinstance(node, opaque):
            for key in ("body", "orelse", "finalbody"):
                yield from statements_in(getattr(node, key, ()), opaque)
            for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                yield from statements_in(part.body, opaque)


def expression_text(node: ast.AST) -> str:
    """Return an expression as source code; TOO_LONG for a very long one, or one with many f-strings.

    Python writes an f-string inside another one several times, so the time is exponential in their depth.
    """
    parts = list(itertools.islice(ast.walk(node), _MOST_PARTS))
    many_fstrings = sum(isinstance(part, ast.JoinedStr) for part in parts) > _MOST_FSTRINGS
    return TOO_LONG if many_fstrings or len(parts) == _MOST_PARTS else ast.unparse(node)


def dotted_name(node: ast.AST) -> str:
    """Return a name or an attribute chain, such as `a.b.c`; empty for any other expression."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
