"""Metrics as files have them: the Hugging Face trainer's state, lines of JSON, lines of a log, W&B's summary.

`trainer_state.json` as transformers 5.19.0 writes it (trainer_callback.py, TrainerState.save_to_json): log_history is
one object a log event. A later checkpoint's has all of the earlier ones'. Evaluations are left out.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from diagnostics import given
from diagnostics.audit.recorded.readers import plain
from diagnostics.audit.recorded.rows import Logged, Series, Unread
from diagnostics.collect.secrets import cut
from diagnostics.triage import metrics
from diagnostics.triage.seen import Seen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

STATE, LINES, LOG, SUMMARY = "trainer_state.json", "metrics.jsonl", "log", "wandb-summary.json"
_STEPS = ("step", "global_step", "_step", "train/global_step", "training/global_step", "trainer/global_step")
MOST = 20_000
_HEAD, _TAIL = given.MIB, 256 * given.KIB


def logged(values: Mapping[str, Any], place: str, step: int | None = None) -> Logged | None:
    """One step's metrics; None where there is none."""
    said: dict[str, float] = {}
    for name, value in values.items():
        made = _number(value)
        if made is not None and len(said) < 500:
            said[cut(str(name), 200)] = made
    if step is None:
        step = next((plain.whole(values[name]) for name in _STEPS if name in values), None)
    meant: dict[str, float] = {}
    for name, value in said.items():
        if (meaning := metrics.meaning(name)) and (meaning not in meant or math.isnan(value)):
            meant[meaning] = value
    return Logged(step, meant, said, place) if meant else None


def _number(value: object) -> float | None:
    """A number, NaN too: that is what is looked for. transformers 5 writes numbers as texts into what it prints."""
    if isinstance(value, str) and len(value) < 40:
        try:
            return float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < 1e300 or value != value or math.isinf(value) else None  # noqa: PLR0124


def state(path: Path, unread: list[Unread]) -> Series | None:
    """The history in a trainer_state.json."""
    try:
        document = given.parsed(given.read(path, plain.FILE))
        history = document["log_history"]
        if not isinstance(history, list):
            raise TypeError("log_history is no list")
    except plain.UNREADABLE as error:
        unread.append(Unread(str(path), cut(f"{type(error).__name__}: {error}", 200)))
        return None
    rows = [
        row
        for place, entry in enumerate(history[:MOST])
        if isinstance(entry, dict) and not any(str(name).startswith("eval_") for name in entry)
        if (row := logged(entry, f"{path.parent.name}/{path.name}: log_history[{place}]"))
    ]
    return Series(STATE, tuple(rows)) if rows else None


def lines(path: Path, unread: list[Unread]) -> Series | None:
    """A file of JSON lines, one a step."""

    def bad(why: str) -> None:
        unread.append(Unread(str(path), why))

    rows: list[Logged] = []
    try:
        for number, entry in plain.lines(path, bad):
            if any(str(name).startswith("eval_") for name in entry):
                continue
            if row := logged(entry, f"{path.name}:{number}"):
                rows.append(row)
            if len(rows) >= MOST:
                bad(f"line {number} and what follows was not read")
                break
    except OSError as error:
        bad(str(error))
    return Series(LINES, tuple(rows)) if rows else None


def summary(path: Path, unread: list[Unread]) -> Series | None:
    """W&B's summary: the last value of each metric."""
    try:
        document = given.parsed(given.read(path, plain.FILE))
        row = logged(document, path.name)
    except (*plain.UNREADABLE, AttributeError) as error:
        unread.append(Unread(str(path), cut(f"{type(error).__name__}: {error}", 200)))
        return None
    return Series(SUMMARY, (row,)) if row else None


def log(path: Path, unread: list[Unread]) -> Series | None:
    """The lines of metrics at both ends of a log, by triage's names."""
    try:
        with given.opened(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            head, between, tail = file.read(_HEAD), 0, b""
            rest = size - len(head) - _TAIL
            while rest > 0 and (block := file.read(min(rest, given.MIB))):
                between += block.count(b"\n")
                rest -= len(block)
                if size - rest > plain.FILE:
                    unread.append(Unread(str(path), f"of {size // given.MIB} MiB the beginning was read"))
                    break
            else:
                tail = file.read(_TAIL)
    except OSError as error:
        unread.append(Unread(str(path), str(error)))
        return None
    lines = head.count(b"\n") + between + tail.count(b"\n") + 1
    rows = _of_rows(metrics.rows_of(Seen(path.name, lines=lines, head=head, tail=tail)))
    return Series(LOG, rows) if rows else None


def of_log(name: str, first: int, text: bytes) -> tuple[Logged, ...]:
    """The lines of metrics among the lines of a log, the first of which has a number."""
    found = metrics.rows_of(Seen(name, lines=text.count(b"\n") + 1, head=text, tail=b""))
    return _of_rows([replace(row, line=row.line + first - 1) for row in found])


def _of_rows(found: Sequence[metrics.Row]) -> tuple[Logged, ...]:
    return tuple(
        Logged(
            None,
            {meant: value for meant, (_, value) in row.said.items()},
            dict(row.said.values()),
            f"{row.source}:{row.line}",
        )
        for row in found
    )


def newest_state(paths: list[Path]) -> list[Path]:
    """Of the states of one run's checkpoints the last, which has the history of all."""
    folders: dict[Path, list[Path]] = {}
    for path in paths:
        above = path.parent.parent if plain.in_steps(path.parent) >= 0 else path.parent
        folders.setdefault(above, []).append(path)
    return [max(found, key=lambda path: plain.in_steps(path.parent)) for found in folders.values()]
