"""Protocol buffers' wire format, as far as TensorBoard's and W&B's records need it: fields by number, nothing else."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

Field = tuple[int, "int | bytes | memoryview"]


def fields(data: memoryview) -> Iterator[Field]:
    """The fields of a message: varints as numbers, the rest as bytes.

    Raises:
        ValueError: It is none.
    """
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield number, value
        elif kind in (1, 5):
            width = 8 if kind == 1 else 4
            yield number, _part(data, place, width)
            place += width
        elif kind == 2:
            length, place = _varint(data, place)
            yield number, _part(data, place, length)
            place += length
        else:
            raise ValueError(f"no message: a field of type {kind}")


def _part(data: memoryview, place: int, length: int) -> memoryview:
    if place + length > len(data):
        raise ValueError("no message: a field is longer than what is left")
    return data[place : place + length]


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for count in range(10):
        if place + count >= len(data):
            break
        byte = data[place + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, place + count + 1
    raise ValueError("no message: a number without an end")


def text(value: object) -> str:
    """A field's bytes as text."""
    return bytes(value).decode("utf-8", "replace") if isinstance(value, memoryview) else ""


def floating(value: object) -> float | None:
    """A field of four or eight bytes as a number."""
    if not isinstance(value, memoryview) or len(value) not in (4, 8):
        return None
    (made,) = struct.unpack("<f" if len(value) == 4 else "<d", value)
    return float(made)
