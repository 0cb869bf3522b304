"""Facts as plain JSON and back: frozen dataclasses of numbers, texts, tuples, dicts and other dataclasses."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


class FactsError(ValueError):
    """Raised when a document does not hold the facts it should; the message names the field."""


def encode(facts: Any) -> dict[str, Any]:
    """The facts as JSON can hold them."""
    return dataclasses.asdict(facts)


def decode(kind: type[T], data: Any, place: str = "facts") -> T:
    """The facts out of what JSON held.

    Fields that are not there take their default; fields that this release does not know are left out, so that two
    releases of the tool can look at each other's facts.

    Raises:
        FactsError: A field without a default is missing, or one holds something else than its type says.
    """
    made: T = _decode(kind, data, place)
    return made


def _decode(kind: Any, data: Any, place: str) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _record(kind, data, place)
    if origin in (types.UnionType, typing.Union):
        rest = [one for one in inner if one is not type(None)]
        return None if data is None else _decode(rest[0], data, place)
    if origin is dict:
        _expect(data, dict, place)
        return {str(key): _decode(inner[1], value, f"{place}.{key}") for key, value in data.items()}
    if origin is tuple:
        _expect(data, (list, tuple), place)
        kinds = [inner[0]] * len(data) if inner[-1] is Ellipsis else list(inner)
        if len(kinds) != len(data):
            raise FactsError(f"{place}: expected {len(kinds)} values, found {len(data)}")
        return tuple(_decode(one, value, place) for one, value in zip(kinds, data, strict=True))
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    _expect(data, kind, place)
    if isinstance(data, float) and not math.isfinite(data):
        raise FactsError(f"{place}: expected a number, found {data}")
    return data


def _record(kind: Any, data: Any, place: str) -> Any:
    _expect(data, dict, place)
    hints = typing.get_type_hints(kind)
    fields = {field.name for field in dataclasses.fields(kind)}
    values = {
        name: _decode(hints[name], value, f"{place}.{name}") for name, value in data.items() if name in fields
    }
    try:
        return kind(**values)
    except TypeError as error:
        raise FactsError(f"{place}: {error}") from None


def _expect(data: Any, kind: Any, place: str) -> None:
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is int):
        raise FactsError(f"{place}: expected {getattr(kind, '__name__', kind)}, found {type(data).__name__}")
