"""Reads TOML tables strictly: keys are known, values have their type, refusals name file and line."""

from __future__ import annotations

import datetime
import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


# Names of tables and keys; a number is the index of a table in an array of tables.
Keys = tuple[str | int, ...]

_KINDS = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    datetime.date: "a date, as 2025-03-05",
}


class TableError(ValueError):
    """Raised when a TOML file, or what was asked of it, can't be used; the message is one line for the user."""


@dataclass(frozen=True)
class TableSource:
    """A TOML file, to say where something in it stands."""

    path: Path
    text: str

    def refuse(self, keys: Keys, value: Any, expected: str) -> TableError:
        """Returns the error for the value at `keys`: file, line, key, value and what was expected."""
        printed = "" if value is None else f" is {_shown(value)}"
        name = f"{'.'.join(map(_key, keys))}{printed}: " if keys else ""
        return TableError(f"{self.place(keys)}: {name}expected {expected}")

    def place(self, keys: Keys, text: str = "") -> str:
        """Returns file and line of `keys`, or of the first line from there on that has a text in it."""
        first = line_of(self.text, keys)
        matched_text = {text, json.dumps(text, ensure_ascii=False)[1:-1]}
        lines = enumerate(self.text.splitlines()[first - 1 :], start=first)
        line = next((number for number, line in lines if any(entry in line for entry in matched_text)), first)
        return f"{self.path}:{line}"


@dataclass
class Table:
    """One table of the file; each `take` checks a key, `close` refuses what nobody took."""

    source: TableSource
    keys: Keys
    values: Mapping[str, Any]
    taken: set[str] = field(default_factory=set)

    def has(self, key: str) -> bool:
        """Tells whether the key is there."""
        return key in self.values

    def refuse(self, key: str, expected: str) -> TableError:
        """Returns the error for one key of this table."""
        return self.source.refuse((*self.keys, key), self.values.get(key), expected)

    def take(self, key: str, kind: type[Any], default: Any = None, *, required: bool = False) -> Any:
        """Returns the value of `key`, checked to be of `kind`."""
        self.taken.add(key)
        if key not in self.values:
            if required:
                raise self.source.refuse(self.keys, None, f"the key {key!r}: {_KINDS[kind]}")
            return default
        value = self.values[key]
        # In Python a bool is an int, and a datetime is a date; here neither is meant.
        wrong = (isinstance(value, bool) and kind is not bool) or isinstance(value, datetime.datetime)
        if kind is float and isinstance(value, int) and not wrong:
            return float(value)
        if wrong or not isinstance(value, kind):
            raise self.refuse(key, _KINDS[kind])
        if kind is str and not value.strip():
            raise self.refuse(key, "a string with something in it")
        return value

    def strings(self, key: str, default: tuple[str, ...] = (), *, required: bool = False) -> tuple[str, ...]:
        """Returns a list of strings."""
        self.taken.add(key)
        if key not in self.values:
            if required:
                raise self.source.refuse(self.keys, None, f"the key {key!r}: a list of strings")
            return default
        value = self.values[key]
        if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
            raise self.refuse(key, "a list of strings")
        if len(set(value)) != len(value):
            raise self.refuse(key, "each string once")
        return tuple(value)

    def choices(
        self, key: str, allowed: Iterable[str], default: tuple[str, ...] = (), *, required: bool = False
    ) -> tuple[str, ...]:
        """Returns a list of strings, each one of `allowed`."""
        known = list(allowed)
        result = self.strings(key, default, required=required)
        for item in result:
            if item not in known:
                raise self.refuse(key, f"each of {', '.join(known)}{close_matches(item, known)}")
        return result

    def table(self, key: str) -> Table:
        """Returns the table below `key`, empty if it isn't there."""
        self.taken.add(key)
        value = self.values.get(key, {})
        if not isinstance(value, Mapping):
            raise self.refuse(key, "a table")
        return Table(self.source, (*self.keys, key), value)

    def items(self, key: str) -> list[Table]:
        """Returns the array of tables below `key`, empty if it isn't there."""
        self.taken.add(key)
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            raise self.refuse(
                key, f"an array of tables, each headed [[{'.'.join(map(_key, (*self.keys, key)))}]]"
            )
        return [Table(self.source, (*self.keys, key, index), item) for index, item in enumerate(value)]

    def tables(self) -> list[tuple[str, Table]]:
        """Returns all values of this table, each a table, by name."""
        return [(key, self.table(key)) for key in self.values]

    def close(self) -> None:
        """Refuses the first key that nobody took."""
        for key in self.values:
            if key not in self.taken:
                known = ", ".join(sorted(self.taken))
                raise self.source.refuse(
                    (*self.keys, key), None, f"one of {known}{close_matches(key, self.taken)}"
                )


def close_matches(word: str, known: Iterable[str]) -> str:
    """Returns ' (did you mean …?)' if something known looks like the word, else nothing."""
    result = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(result)}?)" if result else ""


def _key(key: str | int) -> str:
    if isinstance(key, int):
        return f"#{key + 1}"
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{key}"'


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, datetime.date) else value.isoformat()
    return text if len(text) <= 60 else text[:57] + "…"


def line_of(text: str, keys: Keys) -> int:
    r"""Returns the line of a key, or of the nearest table above it; 1 if neither is found.

    >>> line_of('a = 1\n[b."c.d"]\ne = 2', ("b", "c.d", "e"))
    3
    >>> line_of('a = 1\n[b."c.d"]\ne = 2', ("b", "c.d", "forgotten"))
    2
    >>> line_of('[[b]]\na = 1\n[[b]]\na = 2', ("b", 1, "a"))
    4
    """
    best, best_length = 1, 0
    table: Keys = ()
    seen: dict[Keys, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("[["):
            names = _indexed(
                _path(line.strip().partition("#")[0].replace("[[", "[").replace("]]", "]")), seen
            )
            seen[names] = seen.get(names, -1) + 1
            table = location = (*names, seen[names])
        elif line.lstrip().startswith("["):
            table = location = _indexed(_path(line.partition("#")[0]), seen)
        else:
            name, equals, _value = line.partition("=")
            location = (*table, *_path(f"{name} = 0")) if equals else ()
        if location and len(location) > best_length and location == keys[: len(location)]:
            best, best_length = number, len(location)
    return best


def _indexed(names: tuple[str, ...], seen: Mapping[Keys, int]) -> Keys:
    """Puts into a header's names the index of each array of tables it goes through, the last one but itself."""
    location: Keys = ()
    for position, name in enumerate(names):
        location = (*location, name)
        if location in seen and position < len(names) - 1:
            location = (*location, seen[location])
    return location


def _path(line: str) -> tuple[str, ...]:
    """Returns the keys of a table's header or of an assignment; nothing for a line that is neither."""
    try:
        value: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return ()
    result = []
    while isinstance(value, dict) and value:
        key, value = next(iter(value.items()))
        result.append(key)
    return tuple(result)
