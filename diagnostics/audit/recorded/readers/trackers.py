"""Event files of TensorBoard and W&B's own `.wandb`: scalars alone, by hand, since neither package need be there.

TensorBoard 2.21.0: records of length, checksum, bytes, checksum (record_writer.cc); an Event has step 2 and summary 5,
 whose values 1 have tag 1 and simple_value 2, or a tensor 8 of one float. W&B 0.31.0 (wandb_internal.proto):
LevelDB's log behind seven bytes of header, blocks of 32 KiB; a Record's history 2 has items 1 of key 1 or nested_key 2
and value_json 16. Checksums are not verified. Images, histograms, tables and what the system uses are not read.
"""

from __future__ import annotations

import contextlib
import json
import struct
from typing import TYPE_CHECKING, Any

from diagnostics import given
from diagnostics.audit.recorded.readers import metrics, plain, wire
from diagnostics.audit.recorded.rows import Logged, Series, Unread
from diagnostics.collect.secrets import cut

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EVENTS, HISTORY = "events.out.tfevents", ".wandb"
_BLOCK, _HEADER = 32 * given.KIB, 7


def events(path: Path, unread: list[Unread]) -> Series | None:
    """The scalars of an event file, a row a step."""
    steps: dict[int, dict[str, float]] = {}
    try:
        data = memoryview(given.head(path, plain.FILE))
        for record in _records(data):
            _event(record, steps)
            if len(steps) > metrics.MOST:
                raise ValueError("more steps than are read")
    except plain.UNREADABLE as error:
        unread.append(Unread(str(path), cut(str(error), 200)))
    return _series(EVENTS, path, steps)


def taken(data: memoryview, steps: dict[int, dict[str, float]]) -> int:
    """Puts the scalars of the whole records of a file that grows to their steps; tells how many bytes these are.

    Raises:
        ValueError: What stands there is no record of such a file.
    """
    place = 0
    while place + 12 <= len(data):
        (length,) = struct.unpack("<Q", data[place : place + 8])
        if length > plain.LINE:
            raise ValueError(f"a record of {length} bytes")
        if place + 12 + length + 4 > len(data):
            break
        _event(data[place + 12 : place + 12 + length], steps)
        place += 16 + length
    return place


def _series(kind: str, path: Path, steps: dict[int, dict[str, float]]) -> Series | None:
    rows = [metrics.logged(steps[step], f"{path.name}, step {step}", step) for step in sorted(steps)]
    found: tuple[Logged, ...] = tuple(row for row in rows if row)
    return Series(kind, found) if found else None


def _records(data: memoryview) -> Iterator[memoryview]:
    place = 0
    while place + 12 <= len(data):
        (length,) = struct.unpack("<Q", data[place : place + 8])
        start = place + 12
        if start + length + 4 > len(data):
            raise ValueError(f"cut off: at byte {place} a record of {length} bytes begins")
        yield data[start : start + length]
        place = start + length + 4
    if place != len(data):
        raise ValueError(f"cut off at byte {place}")


def _event(record: memoryview, steps: dict[int, dict[str, float]]) -> None:
    step, summaries = 0, []
    for number, value in wire.fields(record):
        if number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, memoryview):
            summaries.append(value)
    for summary in summaries:
        for number, value in wire.fields(summary):
            if number == 1 and isinstance(value, memoryview):
                tag, scalar = _scalar(value)
                if tag and scalar is not None:
                    steps.setdefault(step, {})[tag] = scalar


def _scalar(value: memoryview) -> tuple[str, float | None]:
    tag, found = "", None
    for number, field in wire.fields(value):
        if number == 1:
            tag = wire.text(field)
        elif number == 2:
            found = wire.floating(field)
        elif number == 8 and isinstance(field, memoryview):
            found = _of_tensor(field)
    return tag, found


def _of_tensor(field: memoryview) -> float | None:
    """A tensor of one float32: as its content, or packed."""
    held = [
        value for number, value in wire.fields(field) if number in (4, 5) and isinstance(value, memoryview)
    ]
    return wire.floating(held[0]) if len(held) == 1 and len(held[0]) == 4 else None


def history(path: Path, unread: list[Unread]) -> Series | None:
    """The history of a `.wandb` file, a row a step."""
    steps: dict[int, dict[str, float]] = {}
    try:
        data = memoryview(given.head(path, plain.FILE))
        if bytes(data[:4]) != b":W&B":
            raise ValueError("no file of W&B's: it begins with something else")
        for record in _logged(data):
            with contextlib.suppress(ValueError):  # a kind of record that is none of ours
                _history(record, steps)
            if len(steps) > metrics.MOST:
                raise ValueError("more steps than are read")
    except plain.UNREADABLE as error:
        unread.append(Unread(str(path), cut(str(error), 200)))
    return _series(HISTORY, path, steps)


def _logged(data: memoryview) -> Iterator[memoryview]:
    """LevelDB's log: whole records, or first, middle and last parts; what is left of a block is padding."""
    place, parts = _HEADER, bytearray()
    while place + 7 <= len(data):
        left = _BLOCK - place % _BLOCK
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        start = place + 7
        if start + length > len(data):
            raise ValueError(f"cut off: at byte {place} a record of {length} bytes begins")
        if kind == 0 and length == 0:
            place += left
            continue
        part = data[start : start + length]
        if kind == 1:
            yield part
        else:
            if kind == 2:
                parts.clear()
            parts += part
            if len(parts) > plain.LINE:
                raise ValueError(
                    f"at byte {place} a record goes on for more than {plain.LINE // given.MIB} MiB"
                )
            if kind == 4:
                yield memoryview(bytes(parts))
                parts.clear()
        place = start + length


def _history(record: memoryview, steps: dict[int, dict[str, float]]) -> None:
    for number, value in wire.fields(record):
        if number == 2 and isinstance(value, memoryview):
            entry = dict(_items(value))
            step = plain.whole(entry.get("_step"))
            numbers = {name: made for name, made in entry.items() if isinstance(made, (int, float))}
            steps.setdefault(len(steps) if step is None else step, {}).update(numbers)


def _items(history: memoryview) -> Iterator[tuple[str, Any]]:
    for number, item in wire.fields(history):
        if number != 1 or not isinstance(item, memoryview):
            continue
        names, value = [], ""
        for field, held in wire.fields(item):
            if field in (1, 2):
                names.append(wire.text(held))
            elif field == 16:
                value = wire.text(held)
        with contextlib.suppress(ValueError, RecursionError):
            if len(value) < 64:
                yield ".".join(filter(None, names)), json.loads(value)
