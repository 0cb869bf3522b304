"""Read metrics of a run: trainer_state.json, JSON lines, logs, and TensorBoard's event files.

Event files are parsed here, because TensorBoard need not be installed. A record is length, checksum, bytes, checksum
(record_writer.cc). An Event has field 2, the step, and 5, the summary. A value of the summary, field 1, has the tag, 1,
and a number, 2, or a tensor of one float, 8. Checksums are not verified. Evaluation metrics are left out everywhere.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from diagnostics import safe_io
from diagnostics.audit.recorded.run_data import (
    MAX_FILE,
    MAX_LINE,
    READ_ERRORS,
    MetricRow,
    MetricSeries,
    UnreadInputs,
    read_json_lines,
    step_in_name,
    whole_number,
)
from diagnostics.logs import metric_names
from diagnostics.output.redact import mask_and_cut

MAX_STEPS = 20_000
_STEPS = ("step", "global_step", "_step", "train/global_step", "training/global_step", "trainer/global_step")
_HEAD, _TAIL = safe_io.MIB, 256 * safe_io.KIB
_SUMMARY = re.compile(rb"'(train_runtime|train_steps_per_second|train_loss)': '?([0-9.e+]{1,20})")


def metric_row(values: Mapping[str, Any], place: str, step: int | None = None) -> MetricRow | None:
    """Convert one step's metrics; None if no name among them is known."""
    numbers = ((mask_and_cut(str(name), 200), _float(value)) for name, value in values.items())
    printed = dict(islice(((name, value) for name, value in numbers if value is not None), 500))
    if step is None:
        step = next((whole_number(values[name]) for name in _STEPS if name in values), None)
    canonical: dict[str, float] = {}
    for name, value in printed.items():
        meaning = "" if name == "train_loss" else metric_names.canonical_name(name)
        if meaning and (meaning not in canonical or math.isnan(value)):
            canonical[meaning] = value
    if "train_runtime" in printed:  # the summary of a run
        return MetricRow(step, {}, printed, place)
    return MetricRow(step, canonical, printed, place) if canonical else None


def is_evaluation(entry: Mapping[str, Any]) -> bool:
    """Return whether a log entry is an evaluation's."""
    return any(str(name).startswith("eval_") for name in entry)


def _float(value: object) -> float | None:
    """Convert a number, NaN included; transformers 5 prints numbers as texts."""
    is_text = isinstance(value, str) and len(value) < 40
    if isinstance(value, bool) or not (is_text or isinstance(value, (int, float))):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (OverflowError, ValueError):
        return None


def _series(kind: str, rows: Sequence[MetricRow | None]) -> MetricSeries | None:
    known = tuple(row for row in rows if row)
    return MetricSeries(kind, known) if known else None


def read_trainer_state(path: Path, unread: UnreadInputs) -> MetricSeries | None:
    """Read the log history of transformers' trainer_state.json (5.19.0, TrainerState.save_to_json)."""
    try:
        document = safe_io.parse_json(safe_io.read_bytes(path, MAX_FILE))
        if not is_trainer_state(document):
            raise TypeError("log_history is not a list")
    except READ_ERRORS as error:
        unread.add(path, f"{type(error).__name__}: {mask_and_cut(str(error), 200)}")
        return None
    place = f"{path.parent.name}/{path.name}: log_history"
    rows = [
        metric_row(entry, f"{place}[{index}]")
        for index, entry in enumerate(document["log_history"][:MAX_STEPS])
        if isinstance(entry, dict) and not is_evaluation(entry)
    ]
    return _series(path.name, rows)


def is_trainer_state(document: Any) -> bool:
    """Return whether a JSON document is a trainer_state.json, independent of its file name."""
    return isinstance(document, dict) and isinstance(document.get("log_history"), list)


def newest_states(paths: Sequence[Path]) -> list[Path]:
    """Return the last trainer_state.json of each run, which has the history of all earlier ones."""
    folders: dict[Path, list[Path]] = {}
    for path in paths:
        parent = path.parent.parent if step_in_name(path.parent) >= 0 else path.parent
        folders.setdefault(parent, []).append(path)
    return [max(group, key=lambda path: step_in_name(path.parent)) for group in folders.values()]


def read_lines(path: Path, unread: UnreadInputs) -> MetricSeries | None:
    """Read a file of JSON lines, one a step."""
    rows: list[MetricRow | None] = []
    try:
        for line, entry in read_json_lines(path, unread):
            if len(rows) >= MAX_STEPS:
                unread.add(path, f"line {line} and all after it: more than {MAX_STEPS} steps")
                break
            if not is_evaluation(entry):
                rows.append(metric_row(entry, f"{path.name}:{line}"))
    except OSError as error:
        unread.add(path, error)
    return _series("metrics.jsonl", rows)


def read_log(path: Path, unread: UnreadInputs) -> MetricSeries | None:
    """Read the lines of metrics at both ends of a log, and the summary that transformers prints at the end."""
    middle = b""
    try:
        with safe_io.open_regular(path) as file:
            size = file.seek(0, 2)
            if size > MAX_FILE:
                unread.add(path, f"{size // safe_io.MIB} MiB: only both ends were read")
            file.seek(0)
            head = file.read(_HEAD)
            if len(head) < size - _TAIL:
                middle = file.read(min(size, MAX_FILE) - len(head) - _TAIL)
                file.seek(max(file.tell(), size - _TAIL))
            tail = file.read(_TAIL)
    except OSError as error:
        unread.add(path, error)
        return None
    lines = sum(part.count(b"\n") for part in (head, middle, tail)) + 1
    rows: list[MetricRow | None] = []
    for row in metric_names.metric_rows(path.name, lines, head, tail):
        values = {meaning: value for meaning, (name, value) in row.metrics.items() if name != "train_loss"}
        rows.append(MetricRow(None, values, dict(row.metrics.values()), f"{row.source}:{row.line}"))
    summary = {match[1].decode(): _float(match[2].decode()) for match in _SUMMARY.finditer(head + tail)}
    printed = {name: value for name, value in summary.items() if value is not None}
    is_summary = {"train_runtime", "train_steps_per_second"} <= set(printed)
    return _series("log", [*rows, MetricRow(None, {}, printed, path.name) if is_summary else None])


def read_events(path: Path, unread: UnreadInputs) -> MetricSeries | None:
    """Read the scalars of a TensorBoard event file."""
    steps: dict[int, dict[str, float]] = {}
    try:
        data = memoryview(safe_io.read_head(path, MAX_FILE))
        used = _parse_events(data, steps)
        if used != len(data):
            raise ValueError(f"cut off at byte {used}")
    except READ_ERRORS as error:
        unread.add(path, error)
    rows = [metric_row(steps[step], f"{path.name}, step {step}", step) for step in sorted(steps)]
    return _series("events.out.tfevents", rows)


def _parse_events(data: memoryview, steps: dict[int, dict[str, float]]) -> int:
    """Add the scalars of all whole records to their steps; return the number of bytes used.

    Raises:
        ValueError: The bytes are not an event file, or it has too many steps.
    """
    place = 0
    while place + 12 <= len(data):
        (length,) = struct.unpack("<Q", data[place : place + 8])
        if length > MAX_LINE:
            raise ValueError(f"a record of {length} bytes")
        if place + 16 + length > len(data):
            break
        _parse_event(data[place + 12 : place + 12 + length], steps)
        if len(steps) > MAX_STEPS:
            raise ValueError(f"more than {MAX_STEPS} steps")
        place += 16 + length
    return place


def _parse_event(record: memoryview, steps: dict[int, dict[str, float]]) -> None:
    fields = list(_protobuf_fields(record))
    step = next((value for number, value in fields if number == 2 and isinstance(value, int)), 0)
    for value in (
        value for summary in _messages(fields, 5) for value in _messages(_protobuf_fields(summary), 1)
    ):
        scalar = list(_protobuf_fields(value))
        tag = b"".join(_messages(scalar, 1)).decode("utf-8", "replace")
        floats = list(_messages(scalar, 2))
        for tensor in _messages(scalar, 8):  # of one float: its content, or packed
            floats = list(_messages(_protobuf_fields(tensor), 4, 5))
        if tag and len(floats) == 1 and len(floats[0]) == 4:
            steps.setdefault(step, {})[tag] = float(struct.unpack("<f", floats[0])[0])


def _messages(fields: Iterable[tuple[int, int | memoryview]], *numbers: int) -> Iterator[memoryview]:
    """Yield the fields with these numbers that are bytes."""
    return (value for number, value in fields if number in numbers and isinstance(value, memoryview))


def _protobuf_fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the fields of a protocol buffer message: varints as numbers, others as bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind not in (0, 1, 2, 5):
            raise ValueError(f"not a protocol buffer: field type {kind}")
        length = {1: 8, 5: 4}.get(kind, 0)
        if kind in (0, 2):
            length, place = _varint(data, place)
        if kind == 0:
            yield key >> 3, length
            continue
        if place + length > len(data):
            raise ValueError("not a protocol buffer: a field is longer than the message")
        yield key >> 3, data[place : place + length]
        place += length


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[place : place + 10]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, place + index + 1
    raise ValueError("not a protocol buffer: a number without an end")
