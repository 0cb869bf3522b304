"""Mask secrets, escape control characters and redact identities in every text of a report before it is rendered.

All report formats use these functions, and so do `audit`, `doctor`, `hang` and `triage` for other output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache, lru_cache
from typing import Any, TypeVar

from diagnostics.collect.metadata_validation import is_package_version
from diagnostics.output import redact, sanitize

T = TypeVar("T")
Change = Callable[[str], str]
Skip = frozenset[tuple[str, str]]
"""Fields that stay as they are: names of a dataclass and of its field."""
# Texts that may have several lines; every other text is one line.
_MULTI_LINE = {("Finding", "detail"), ("Advice", "text")}
# Classes with commands: a terminal shows a tab as blanks, and a command copied with blanks is a different command.
_COMMANDS = {"Install", "Uninstall", "Unset", "SetVariables", "Run"}
# Formats with a field for a file redact the location themselves.
_LOCATIONS = frozenset({("Evidence", "place")})


def for_screen(value: T) -> T:
    """Mask secrets and escape control characters in every text, for the user's own screen."""
    masked = lru_cache(1024)(redact.mask)
    return change_texts(
        value, lambda text: sanitize.escape_line(masked(text)), lambda text: sanitize.escape(masked(text))
    )


def for_sharing(value: T, *, locations: bool = True) -> T:
    """Redact secrets and what identifies a person or a machine in every text, for a report that is shared.

    Args:
        value: A report, a plan or a document.
        locations: Whether to redact locations of evidence too.
    """
    return change_texts(value, cache(redact.redact), skip=frozenset() if locations else _LOCATIONS)


def change_texts(value: T, line: Change, prose: Change | None = None, skip: Skip = frozenset()) -> T:
    """Apply a function to every text in nested data, and to its dict keys.

    Args:
        value: Dataclasses, dicts, lists and tuples of texts.
        line: Function for a text.
        prose: Function for a text of several lines; None to use `line`.
        skip: Fields that stay as they are.
    """
    changed: T = _change(value, line, prose or line, skip)
    return changed


def _change(value: Any, line: Change, prose: Change, skip: Skip) -> Any:
    if isinstance(value, str):
        return line(value)
    if isinstance(value, dict):
        return {
            line(key) if isinstance(key, str) else key: _dict_value(key, item, line, prose, skip)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(_change(item, line, prose, skip) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        name = type(value).__name__
        own_line = _tab_escaped(line) if name in _COMMANDS else line
        changed = {
            field.name: _change(
                getattr(value, field.name),
                prose if (name, field.name) in _MULTI_LINE else own_line,
                prose,
                skip,
            )
            for field in fields(value)
            if field.init and (name, field.name) not in skip
        }
        return replace(value, **changed)
    return value


def _tab_escaped(line: Change) -> Change:
    """Return a function that does the same as `line` and also escapes tabs."""
    return lambda text: line(text).replace("\t", r"\u0009")


def _dict_value(key: Any, item: Any, line: Change, prose: Change, skip: Skip) -> Any:
    """Change a dict's value together with its key, because the value of a key `password` is always secret."""
    if not isinstance(key, str) or not isinstance(item, str):
        return _change(item, line, prose, skip)
    # Four numbers with dots are a release under these keys, and an IPv4 address under any other key.
    if key in {"version", "python"} and is_package_version("a", item):
        return item
    prefix = f"{key}="
    changed = line(prefix + item)
    return changed.removeprefix(prefix) if changed.startswith(prefix) else line(item)
