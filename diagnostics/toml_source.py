"""Convert parsed tables of a TOML file to msgspec records; an error names file, line, key, and the expected value.

`key_lines` finds the lines of keys in the text, because the TOML parser reports none. `close_matches` suggests names
for a misspelt word.
"""

import datetime
import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from diagnostics import UserError
from diagnostics.output.redact import truncate

_BARE_KEYS = re.compile(r"\[([\w.-]+)\][ \t]*|[ \t]*([\w.-]+)[ \t]*= 0", re.ASCII)
# Path of a key: names of tables and keys; a number is the index of a table in an array of tables.
Keys = tuple[str | int, ...]


class TomlError(UserError, ValueError):
    """Raised for a TOML file that cannot be used; the message is one line for the user."""


@dataclass(frozen=True)
class TomlSource:
    """The path and text of a TOML file, in which the lines of keys are found; the caller parses the text."""

    path: Path
    text: str

    def convert(self, keys: Keys, value: Any, kind: Any, forms: Mapping[str, str] | None = None) -> Any:
        """Convert the table at `keys` to a record by msgspec.

        Args:
            keys: Where the table is in the file.
            value: The table.
            kind: The type of the record.
            forms: Field name -> the expected form, for an error about a field that has a pattern or a set of values.

        Raises:
            TomlError: The table is no such record.
        """
        try:
            return msgspec.convert(value, kind, builtin_types=(datetime.date, datetime.datetime))
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at `$")
        inner: Keys = tuple(
            int(part) if part.isdecimal() else part for part in re.findall(r"[\w-]+", path.replace("...", ""))
        )
        if unknown := re.search(r"unknown field `(.*)`", message):
            similar = "" if inner else close_matches(unknown[1], kind.__struct_fields__)
            raise self._error((*keys, *inner, unknown[1]), None, f"unknown key{similar}")
        if missing := re.search(r"missing required field `(.*)`", message):
            raise self.error_at((*keys, *inner), None, f"the key {missing[1]!r}")
        field = next((part for part in reversed(inner) if isinstance(part, str)), "")
        if forms and field in forms and message.startswith(("Invalid enum value", "Expected `str` matching")):
            message = f"Expected {forms[field]}"
        text = re.sub(r"\AExpected ", "expected ", message)
        raise self._error((*keys, *inner), value_at(value, inner), text)

    def error_at(self, keys: Keys, value: Any, expected: str) -> TomlError:
        """Return the error for the value at `keys`: file, line, key, value and the expected value."""
        return self._error(keys, value, f"expected {expected}")

    def _error(self, keys: Keys, value: Any, text: str) -> TomlError:
        actual = "" if value is None else f" is {_printable(value)}"
        name = f"{'.'.join(map(_key, keys))}{actual}: " if keys else ""
        return TomlError(f"{self.location(keys)}: {name}{text}")

    def location(self, keys: Keys, text: str = "") -> str:
        """Return `file:line` of `keys`, or of the innermost table above that has a line; line 1 if none has.

        If a line from there on contains `text`, as it is or as in a TOML string, that line is returned instead.
        """
        prefixes = (keys[:length] for length in range(len(keys), 0, -1))
        first = next((self._lines[prefix] for prefix in prefixes if prefix in self._lines), 1)
        variants = {text, json.dumps(text, ensure_ascii=False)[1:-1]}
        lines = enumerate(self.text.splitlines()[first - 1 :], start=first)
        line = next((number for number, line in lines if any(entry in line for entry in variants)), first)
        return f"{self.path}:{line}"

    @cached_property
    def _lines(self) -> dict[Keys, int]:
        return key_lines(self.text)


def close_matches(word: str, known: Iterable[str]) -> str:
    """Return ' (did you mean …?)' with up to three similar known words, or an empty text."""
    result = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(result)}?)" if result else ""


def value_at(document: Any, keys: Keys) -> Any:
    """Return the text, number, date or bool at `keys`; None for a table, a list, and if there is no value."""
    for key in keys:
        try:
            document = document[key]
        except (KeyError, IndexError, TypeError):
            return None
    return None if isinstance(document, dict | list) else document


def _key(key: str | int) -> str:
    if isinstance(key, int):
        return f"#{key + 1}"
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{key}"'


def _printable(value: Any) -> str:
    text = repr(value) if not isinstance(value, datetime.date) else value.isoformat()
    return text if len(text) <= 60 else truncate(text, 57) + "…"


def key_lines(text: str) -> dict[Keys, int]:
    r"""Return the first line of each table and key of a TOML text; keys of inline tables are left out.

    The path of a key in an array of tables has the table's index. Lines of multi-line strings are read as keys.

    >>> key_lines('a = 1\n[b."c.d"]\ne = 2\n[[f]]\ng = 3')[("b", "c.d", "e")]
    3
    >>> key_lines('[[b]]\na = 1\n[[b]]\na = 2')[("b", 1, "a")]
    4
    """
    lines: dict[Keys, int] = {}
    table: Keys = ()
    last_index: dict[Keys, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip().partition("#")[0]
        if stripped.startswith("[["):
            names = _with_indexes(_parse_keys(stripped.replace("[[", "[").replace("]]", "]")), last_index)
            last_index[names] = last_index.get(names, -1) + 1
            table = location = (*names, last_index[names])
        elif stripped.startswith("["):
            table = location = _with_indexes(_parse_keys(stripped), last_index)
        else:
            name, equals, _value = line.partition("=")
            location = (*table, *_parse_keys(f"{name} = 0")) if equals else ()
        if location:
            lines.setdefault(location, number)
    return lines


def _with_indexes(names: tuple[str, ...], last_index: Mapping[Keys, int]) -> Keys:
    """Insert the current index after each array of tables in a header's keys, except after the last key."""
    location: Keys = ()
    for position, name in enumerate(names):
        location = (*location, name)
        if location in last_index and position < len(names) - 1:
            location = (*location, last_index[location])
    return location


def _parse_keys(line: str) -> tuple[str, ...]:
    """Return the keys of a table's header or of an assignment; nothing for a line that is neither."""
    # The TOML parser needs 15 µs for a line, and a file may have 100,000.
    bare = _BARE_KEYS.fullmatch(line)
    if bare and all(names := (bare[1] or bare[2]).split(".")):
        return tuple(names)
    try:
        value: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return ()
    result = []
    while isinstance(value, dict) and value:
        key, value = next(iter(value.items()))
        result.append(key)
    return tuple(result)
