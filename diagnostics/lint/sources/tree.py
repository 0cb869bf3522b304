"""What the structured readers make: plain nested data in which every leaf is a Value."""

from __future__ import annotations

from typing import Any

from diagnostics.lint.values import Value

# A config is far below these; what is above is refused, so that no input costs unbounded time or memory.
MAX_BYTES = 2_000_000
MAX_DEPTH = 48
MAX_NODES = 100_000


class UnreadableError(ValueError):
    """Raised when a file can't be read as what it is; the message is one line for the user."""


def flat(tree: Any, prefix: str = "") -> dict[str, Value]:
    """Lays nested tables out under dotted keys.

    Args:
        tree: Dicts of dicts, lists and Values, as the readers make them; at most MAX_DEPTH deep.
        prefix: What the keys begin with.
    """
    if not isinstance(tree, dict):
        return {prefix: plain(tree).named(prefix)} if prefix else {}
    found: dict[str, Value] = {}
    for key, value in tree.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, dict) and value:
            found.update(flat(value, name))
        elif isinstance(value, dict):
            continue
        else:
            found[name] = plain(value).named(name)
    return found


def plain(node: Any) -> Value:
    """A leaf or a list as one Value; a list stands where its first value does."""
    if isinstance(node, Value):
        return node
    first = _first(node)
    if first is None:
        raise UnreadableError("an empty table where a value was expected")
    return first.but(_data(node))


def _first(node: Any) -> Value | None:
    if isinstance(node, Value):
        return node
    children = list(node.values()) if isinstance(node, dict) else list(node)
    return next((found for child in children if (found := _first(child)) is not None), None)


def _data(node: Any) -> Any:
    if isinstance(node, Value):
        return node.data
    if isinstance(node, dict):
        return {key: _data(value) for key, value in node.items()}
    return [_data(value) for value in node]
