"""TOML with line numbers."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from diagnostics.lint.sources.tree import MAX_DEPTH, UnreadableError
from diagnostics.lint.values import Place, Value

_HEADER = re.compile(r"\s*\[([^\[\]]+)\]")
# tomllib takes time with the square of a key's parts.
_LONG_KEY = re.compile(rf"(?:\.[ \t]*[A-Za-z0-9_\"'-]{{1,60}}[ \t]*){{{MAX_DEPTH}}}")
_KEY = re.compile(r"([A-Za-z0-9_.\"' \t-]+)=")


def read(text: str, file: str) -> dict[str, Any]:
    """Reads a TOML text into dicts, lists and Values.

    Raises:
        UnreadableError: It is no TOML, or deeper than a config is.
    """
    if _LONG_KEY.search(text):
        raise UnreadableError(f"{file}: a key with more than {MAX_DEPTH} parts: no config has one")
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise UnreadableError(f"{file}: not TOML: {str(error) or 'nested too deep'}") from None
    values = _values(document, _lines(text), "", file, 0)
    assert isinstance(values, dict)
    return values


def _lines(text: str) -> dict[str, int]:
    """The line of each dotted key, in one pass."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = _dotted(header[1])
            found.setdefault(table, number)
        elif key := _KEY.match(line.lstrip()):
            found.setdefault(f"{table}.{_dotted(key[1])}".strip("."), number)
    return found


def _dotted(name: str) -> str:
    return ".".join(part.strip(" \t\"'") for part in name.split("."))


def _values(node: Any, lines: dict[str, int], key: str, file: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise UnreadableError(f"{file}: nested more than {MAX_DEPTH} deep: no config is")
    if isinstance(node, dict):
        return {
            name: _values(value, lines, f"{key}.{name}".strip("."), file, depth + 1)
            for name, value in node.items()
        }
    return Value(node, Place(file, lines.get(key, 0)))
