"""A TOML file with the line of each key, so that an error names file, line, key and value."""

from __future__ import annotations

import datetime
import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnostics import UserError

# Names of tables and keys; a number is the index of a table in an array of tables.
Keys = tuple[str | int, ...]


class TomlError(UserError, ValueError):
    """Raised for a TOML file that cannot be used; the message is one line for the user."""


@dataclass(frozen=True)
class TomlSource:
    """The path and text of a TOML file."""

    path: Path
    text: str

    def refuse(self, keys: Keys, value: Any, expected: str) -> TomlError:
        """Return the error for the value at `keys`: file, line, key, value and what was expected."""
        actual = "" if value is None else f" is {_printable(value)}"
        name = f"{'.'.join(map(_key, keys))}{actual}: " if keys else ""
        return TomlError(f"{self.place(keys)}: {name}expected {expected}")

    def place(self, keys: Keys, text: str = "") -> str:
        """Return file and line of `keys`, or of the first line after it that contains a text."""
        first = line_of(self.text, keys)
        matched_text = {text, json.dumps(text, ensure_ascii=False)[1:-1]}
        lines = enumerate(self.text.splitlines()[first - 1 :], start=first)
        line = next((number for number, line in lines if any(entry in line for entry in matched_text)), first)
        return f"{self.path}:{line}"


def close_matches(word: str, known: Iterable[str]) -> str:
    """Return ' (did you mean …?)' if a known word is similar, else an empty text."""
    result = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(result)}?)" if result else ""


def _key(key: str | int) -> str:
    if isinstance(key, int):
        return f"#{key + 1}"
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{key}"'


def _printable(value: Any) -> str:
    text = repr(value) if not isinstance(value, datetime.date) else value.isoformat()
    return text if len(text) <= 60 else text[:57] + "…"


def line_of(text: str, keys: Keys) -> int:
    r"""Return the line of a key, or of the nearest table above it; 1 if neither is found.

    >>> line_of('a = 1\n[b."c.d"]\ne = 2', ("b", "c.d", "e"))
    3
    >>> line_of('a = 1\n[b."c.d"]\ne = 2', ("b", "c.d", "forgotten"))
    2
    >>> line_of('[[b]]\na = 1\n[[b]]\na = 2', ("b", 1, "a"))
    4
    """
    best, best_length = 1, 0
    table: Keys = ()
    first_lines: dict[Keys, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("[["):
            names = _indexed(
                _path(line.strip().partition("#")[0].replace("[[", "[").replace("]]", "]")), first_lines
            )
            first_lines[names] = first_lines.get(names, -1) + 1
            table = location = (*names, first_lines[names])
        elif line.lstrip().startswith("["):
            table = location = _indexed(_path(line.partition("#")[0]), first_lines)
        else:
            name, equals, _value = line.partition("=")
            location = (*table, *_path(f"{name} = 0")) if equals else ()
        if location and len(location) > best_length and location == keys[: len(location)]:
            best, best_length = number, len(location)
    return best


def _indexed(names: tuple[str, ...], seen: Mapping[Keys, int]) -> Keys:
    """Insert the current index after each array of tables in a header's keys, except after the last."""
    location: Keys = ()
    for position, name in enumerate(names):
        location = (*location, name)
        if location in seen and position < len(names) - 1:
            location = (*location, seen[location])
    return location


def _path(line: str) -> tuple[str, ...]:
    """Return the keys of a table's header or of an assignment; nothing for a line that is neither."""
    try:
        value: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return ()
    result = []
    while isinstance(value, dict) and value:
        key, value = next(iter(value.items()))
        result.append(key)
    return tuple(result)
