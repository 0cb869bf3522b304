"""What a command found out, before any format sees it: nothing in it acts, nothing in it is secret or somebody's.

One walk over the data for every command, so that no format has to think of it; commands are cleaned as words, and
quoted afterwards.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from diagnostics import door
from diagnostics.collect.names import names_a_package
from diagnostics.collect.secrets import mask

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
# Texts of one report whose cleaned form is kept while it is walked.
_KEPT = 1024
# Sentences, which may be written over several lines; everything else is one line.
_PROSE = {("Finding", "detail"), ("Advice", "text")}
# A tab would be drawn as blanks, and the word of a command be another.
_COMMANDS = {"Install", "Uninstall", "Unset", "SetVariables", "Run"}
# A place has to be found by those formats that name it in a field of its own: they take out of it what is personal.
_PLACES = {("Evidence", "place")}


def own(value: T) -> T:
    """The same for the eyes of whoever ran it: no secret in it, nothing that acts on a terminal."""
    # Keys, paths and words of processes that are alike come again and again.
    masked = lru_cache(_KEPT)(mask)
    cleaned: T = _walk(value, lambda text: door.line(masked(text)), lambda text: door.visible(masked(text)))
    return cleaned


def shareable(value: T, *, places: bool = True) -> T:
    """The same for everybody's eyes: nothing personal in it either.

    Args:
        value: A report, a plan, a document.
        places: Whether evidence's places are cleaned, too.
    """
    # Late: what goes to a terminal needs none of its many patterns.
    from diagnostics.output.personal import strip

    stripped = lru_cache(_KEPT)(strip)
    cleaned: T = _walk(value, stripped, stripped, frozenset() if places else frozenset(_PLACES))
    return cleaned


def _walk(
    value: Any,
    change: Callable[[str], str],
    prose: Callable[[str], str],
    kept: frozenset[tuple[str, str]] = frozenset(),
) -> Any:
    """The value with every text in it changed, keys too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_key(key, change): _entry(key, item, change, prose, kept) for key, item in value.items()}
    if isinstance(value, list | tuple):
        made = [_walk(item, change, prose, kept) for item in value]
        return tuple(made) if isinstance(value, tuple) else made
    if is_dataclass(value) and not isinstance(value, type):
        if type(value).__name__ in _COMMANDS:
            change = _without_tabs(change)
        changed = {}
        for field in fields(value):
            where = (type(value).__name__, field.name)
            if where not in kept:
                by = prose if where in _PROSE else change
                changed[field.name] = _walk(getattr(value, field.name), by, prose, kept)
        return replace(value, **changed)
    return value


def _without_tabs(change: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: change(text).replace("\t", r"\u0009")


def _key(key: Any, change: Callable[[str], str]) -> Any:
    return change(key) if isinstance(key, str) else key


def _entry(
    key: Any,
    item: Any,
    change: Callable[[str], str],
    prose: Callable[[str], str],
    kept: frozenset[tuple[str, str]],
) -> Any:
    """A value with its key before it: what is called a password is one, whatever it looks like."""
    if not isinstance(key, str) or not isinstance(item, str):
        return _walk(item, change, prose, kept)
    # Four numbers with dots are a release here, and an address everywhere else.
    if key in {"version", "python"} and names_a_package("a", item):
        return item
    head = f"{key}="
    told = change(head + item)
    return told.removeprefix(head) if told.startswith(head) else change(item)
