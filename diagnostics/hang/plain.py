"""Dataclasses as JSON and back: what is empty is left out, what does not fit is refused."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any


def slim(value: Any) -> Any:
    """Leaves out what is empty or unknown: most of a bundle would be that."""
    if isinstance(value, dict):
        return {k: slim(v) for k, v in value.items() if v not in (None, "", (), [], {})}
    if isinstance(value, list | tuple):
        return [slim(item) for item in value]
    return round(value, 3) if isinstance(value, float) else value


def whole_words(text: str, most: int) -> str:
    """The beginning of a text without a word that it would tear: half of a secret has no shape to be masked by.

    >>> whole_words("train.py --key 0a1b2c3d", 18)
    'train.py --key'
    """
    return text if len(text) <= most else text[:most].rpartition(" ")[0] or text[:most]


@functools.cache
def _fields(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {item.name: hints[item.name] for item in dataclasses.fields(kind)}


def build(kind: Any, value: Any) -> Any:
    """Builds a value of a type out of JSON, refusing what does not fit."""
    origin = typing.get_origin(kind)
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(f"{whole_words(repr(value), 60)}: expected a list")
        return tuple(build(typing.get_args(kind)[0], item) for item in value)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else build(typing.get_args(kind)[0], value)
    if dataclasses.is_dataclass(kind):
        known = _fields(typing.cast("type", kind))
        if not isinstance(value, dict) or not set(value) <= set(known):
            raise TypeError(f"{whole_words(repr(value), 60)}: expected an object with keys of {kind}")
        return typing.cast("Any", kind)(**{k: build(known[k], v) for k, v in value.items()})
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{whole_words(repr(value), 60)}: expected {kind.__name__}")
    return value
