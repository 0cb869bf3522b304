"""TRL's `completions/completions_00012.parquet`, one a log event, written with `log_completions=True`.

As read in trl 1.16.0, trl/trainer/grpo_trainer.py, GRPOTrainer.log: columns step, prompt, completion, one of each
reward function, further columns of `log_extra`, advantage. Texts lack special tokens; ids, log-probs and groups are not
there.
It takes pyarrow, which reads a file that was read whole and is bounded before.
"""

from __future__ import annotations

import importlib.util
import io
from typing import TYPE_CHECKING, Any

from diagnostics import given
from diagnostics.audit.recorded.readers import plain
from diagnostics.audit.recorded.rows import Recording, Row, Unread
from diagnostics.collect.secrets import cut

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

KIND = "completions.parquet"
_OWN = {"step", "prompt", "completion", "advantage", "solution", "image", "images"}
_NEEDED = {"step", "prompt", "completion"}


def read(paths: Sequence[Path], budget: plain.Budget, unread: list[Unread]) -> Recording | None:
    """The samples of these files, in the order of their steps; what can't be read is told."""
    if importlib.util.find_spec("pyarrow") is None:
        unread.append(Unread(f"{paths[0].parent}/*.parquet", "pyarrow"))
        return None
    ordered = sorted(paths, key=plain.in_steps)
    rows: list[Row] = []
    files = 0
    for path in plain.chosen(ordered):
        try:
            found = _rows(path, budget)
        except Exception as error:  # noqa: BLE001 - pyarrow has errors of its own, which are no common class
            first = str(error).strip().splitlines()
            unread.append(Unread(str(path), cut(first[0], 200) if first else type(error).__name__))
            continue
        files += 1
        rows += found
    if not rows:
        return None
    return Recording(KIND, tuple(rows), files=(len(paths), files))


def _rows(path: Path, budget: plain.Budget) -> list[Row]:
    from pyarrow import parquet

    data = given.read(path, plain.FILE)
    file = parquet.ParquetFile(io.BytesIO(data))
    held = file.metadata
    unpacked = sum(held.row_group(place).total_byte_size for place in range(held.num_row_groups))
    if unpacked > plain.FILE or held.num_rows > plain.ROWS:
        raise ValueError(f"{held.num_rows} rows of {unpacked // given.MIB} MiB, which no such file holds")
    names = file.schema_arrow.names
    if missing := _NEEDED - set(names):
        raise ValueError(f"no column {', '.join(sorted(missing))}")
    if not budget.spend(max(unpacked, len(data))) or budget.rows < held.num_rows:
        raise ValueError("more than is read of one run")
    found: list[Row] = []
    size = 0
    # A text that the file holds once may stand in every row: so many rows at once as hold no more than a file even so.
    at_once = max(1, min(1024, 4 * plain.FILE // max(unpacked, 1)))
    for batch in file.iter_batches(batch_size=at_once, use_threads=False):
        entries = batch.to_pylist()
        size += _size(entries)
        if size > plain.ALL:
            raise ValueError(f"texts of more than {plain.ALL // given.MIB} MiB, which no such file holds")
        found += [_row(entry, path, len(found) + place) for place, entry in enumerate(entries)]
    budget.rows -= len(found)
    return found


def _size(value: object) -> int:
    """How much of letters and numbers is in it."""
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list):
        return sum(map(_size, value))
    return len(value) if isinstance(value, (str, bytes)) else 8


def _row(entry: dict[str, Any], path: Path, place: int) -> Row:
    scores = {
        name: plain.number(value)
        for name, value in entry.items()
        if name not in _OWN and (value is None or isinstance(value, float))
    }
    prompt = entry["prompt"]
    return Row(
        plain.whole(entry["step"]) or 0,
        plain.text_of(prompt),
        plain.text_of(entry["completion"]),
        advantage=plain.number(entry.get("advantage")),
        reward=_only(scores),
        scores=scores,
        chat=None if isinstance(prompt, str) else prompt,
        columns={name: value for name, value in entry.items() if name not in _NEEDED and name not in scores},
        place=f"{path.name}:{place}",
    )


def _only(scores: dict[str, float | None]) -> float | None:
    """The reward where there is one function; how several are weighed is not written down."""
    return next(iter(scores.values())) if len(scores) == 1 else None
