"""Whether a document is of the shape that those who use it expect; said before it is used, in one line."""

from __future__ import annotations

import math
from typing import Any

# A table of named keys, of which those that end with "?" may be missing and others may be there.
Shape = Any
ANY = object()


class Each:
    """A table of any names whose values are of one shape."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape


def problem(data: Any, shape: Shape, place: str = "") -> str:
    """Why a document is none of that shape, empty if it is one.

    Args:
        data: As JSON held it.
        shape: A type; a tuple of types or None, one of which; a list of one shape, for a list of such; an Each; a
            dictionary of keys; ANY.
        place: Where it stands, as "cells[3].layers".

    >>> problem({"cells": [{"id": 1}]}, {"cells": [{"id": str, "note?": str}]})
    'cells[0].id: expected str, found int'
    """
    if isinstance(shape, dict):
        return _of_keys(data, shape, place)
    if isinstance(shape, Each):
        if not isinstance(data, dict):
            return _expected("a table", data, place)
        items = ((f"{place}.{str(name)[:60]}".lstrip("."), value) for name, value in data.items())
        return next((said for name, value in items if (said := problem(value, shape.shape, name))), "")
    if isinstance(shape, list):
        if not isinstance(data, list):
            return _expected("a list", data, place)
        parts = ((f"{place}[{number}]", value) for number, value in enumerate(data))
        return next((said for name, value in parts if (said := problem(value, shape[0], name))), "")
    return "" if shape is ANY or _is(data, shape) else _expected(_named(shape), data, place)


def _of_keys(data: Any, shape: dict[str, Shape], place: str) -> str:
    if not isinstance(data, dict):
        return _expected("a table", data, place)
    for key, inner in shape.items():
        name = key.removesuffix("?")
        where = f"{place}.{name}".lstrip(".")
        if name not in data:
            if key == name:
                return f"{where}: is missing"
        elif said := problem(data[name], inner, where):
            return said
    return ""


def _is(data: Any, shape: Shape) -> bool:
    if isinstance(shape, tuple):
        return any(_is(data, one) for one in shape)
    if shape is None:
        return data is None
    if shape is float:
        return isinstance(data, int | float) and not isinstance(data, bool) and math.isfinite(data)
    return isinstance(data, shape) and (shape is bool or not isinstance(data, bool))


def _named(shape: Shape) -> str:
    if isinstance(shape, tuple):
        return " or ".join(map(_named, shape))
    return "nothing" if shape is None else str(shape.__name__)


def _expected(what: str, data: Any, place: str) -> str:
    return f"{place or 'the document'}: expected {what}, found {type(data).__name__}"
