"""Read the metrics of a run from trainer_state.json (`read_trainer_state`), JSON lines and logs.

Each reader (the others are `read_lines` and `read_log`) returns a `MetricSeries` with canonical names, or None without
known metrics, and adds unread inputs to `unread`. At most 20,000 steps of a file are read. Of a step at most 500
metrics are stored, and the rest is dropped without a note. The reward is the only metric of an evaluation that has a
canonical name. `metric_row` converts the metrics of one step; `newest_states` chooses among a run's trainer_state.json
files.
"""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from diagnostics import safe_io
from diagnostics.audit.recorded import run_data
from diagnostics.frameworks import FRAMEWORKS
from diagnostics.logs.metrics import canonical_name, flatten, metric_rows
from diagnostics.output.redact import name_below, truncate

MAX_STEPS = 20_000
# Names of the number of the step.
_STEPS = ("step", "global_step", "_step", "train/global_step", "training/global_step", "trainer/global_step")
_HEAD_BYTES, _TAIL_BYTES = 8 * safe_io.MIB, 256 * safe_io.KIB
# (framework, pattern) of each metric prefix; ms-swift, which prints TRL's metrics too, comes before TRL.
_PREFIXES = [
    (item.name, re.escape(prefix).encode())
    for item in reversed(FRAMEWORKS.values())
    for prefix in item.metric_prefixes
]
_SUMMARY = re.compile(rb"'(train_runtime|train_steps_per_second|train_loss)': '?([0-9.e+]{1,20})")


def metric_row(values: Mapping[str, Any], place: str, step: int | None = None) -> run_data.MetricRow | None:
    """Convert the metrics of one step, with the step's number from `step` or from the values; None if no name is known.

    transformers' summary of a run (`train_runtime`) becomes a row without canonical values.
    """
    numbers = ((truncate(str(name), 200), _float(value)) for name, value in values.items())
    printed = dict(islice(((name, value) for name, value in numbers if value is not None), 500))
    if step is None:
        # ms-swift prints "40/160".
        progress = str(values.get("global_step/max_steps", "")).partition("/")[0]
        step = run_data.whole_number(next((values[name] for name in _STEPS if name in values), progress))
        printed |= {"global_step/max_steps": float(step)} if progress and step is not None else {}
    canonical: dict[str, float] = {}
    for name, value in printed.items():
        meaning = "" if name == "train_loss" else canonical_name(name)
        if meaning and (meaning not in canonical or math.isnan(value)):
            canonical[meaning] = value
    if "train_runtime" in printed:  # the summary of a run
        return run_data.MetricRow(step, {}, printed, place)
    return run_data.MetricRow(step, canonical, printed, place) if canonical else None


def is_evaluation(entry: Mapping[str, Any]) -> bool:
    """Return whether a log entry has the metrics of an evaluation."""
    return any(str(name).startswith("eval_") for name in entry)


def _float(value: object) -> float | None:
    """Convert a number or a text with a number, as transformers 5 prints; NaN is accepted. None for other values."""
    is_text = isinstance(value, str) and len(value) < 40
    if isinstance(value, bool) or not (is_text or isinstance(value, (int, float))):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (OverflowError, ValueError):
        return None


def _series(kind: str, rows: Sequence[run_data.MetricRow | None]) -> run_data.MetricSeries | None:
    known = tuple(row for row in rows if row)
    return run_data.MetricSeries(kind, known) if known else None


def read_trainer_state(path: Path, unread: run_data.UnreadInputs) -> run_data.MetricSeries | None:
    """Read the log history of transformers' trainer_state.json (5.19.0, TrainerState.save_to_json)."""
    try:
        document = safe_io.parse_json(safe_io.read_bytes(path, run_data.MAX_FILE))
        if not is_trainer_state(document):
            raise TypeError("log_history is not a list")
    except run_data.READ_ERRORS as error:
        unread.add(path, f"{type(error).__name__}: {truncate(str(error), 200)}")
        return None
    place, history = f"{name_below(path, path.parent.parent)}: log_history", document["log_history"]
    if len(history) > MAX_STEPS:
        unread.add(path, f"log_history[{MAX_STEPS}] and all after it: more than {MAX_STEPS} steps")
    entries = enumerate(history[:MAX_STEPS])
    rows = [metric_row(entry, f"{place}[{index}]") for index, entry in entries if isinstance(entry, dict)]
    return _series(path.name, rows)


def is_trainer_state(document: Any) -> bool:
    """Return whether a JSON document is a trainer_state.json, independent of its file name."""
    return isinstance(document, dict) and isinstance(document.get("log_history"), list)


def newest_states(paths: Sequence[Path]) -> list[Path]:
    """Return the last trainer_state.json of each run, which contains the history of the earlier files."""
    folders: dict[Path, list[Path]] = {}
    for path in paths:
        parent = path.parent.parent if run_data.step_in_name(path.parent) >= 0 else path.parent
        folders.setdefault(parent, []).append(path)
    return [max(group, key=lambda path: run_data.step_in_name(path.parent)) for group in folders.values()]


def read_lines(path: Path, unread: run_data.UnreadInputs) -> run_data.MetricSeries | None:
    """Read a file of JSON lines with one step per line; verl's FileLogger (0.7.1) has the metrics under `data`.

    EasyR1's nests them.

    A file of numbers without any known name is added to `unread`.
    """
    rows: list[run_data.MetricRow | None] = []
    numbers = 0
    try:
        for line, entry in run_data.read_json_lines(path, unread):
            if len(rows) >= MAX_STEPS:
                unread.add(path, f"line {line} and all after it: more than {MAX_STEPS} steps")
                break
            data = entry.get("data")
            values = dict(flatten({"step": entry.get("step")} | data if isinstance(data, dict) else entry))
            rows.append(metric_row(values, f"{path.name}:{line}"))
            numbers += sum(_float(value) is not None for value in values.values())
    except OSError as error:
        unread.add(path, error)
    if not any(rows) and numbers >= 3 * len(rows) > 0:
        unread.add(path, "no name of its numbers is a known metric")
    return _series(path.name, rows)


def read_log(path: Path, unread: run_data.UnreadInputs) -> run_data.MetricSeries | None:
    """Read the metrics and transformers' summary in the first 8 MiB and the last 256 KiB of a log."""
    try:
        with safe_io.open_regular(path) as file:
            head = file.read(_HEAD_BYTES)
            size = file.seek(0, 2)
            file.seek(max(len(head), size - _TAIL_BYTES))
            tail = file.read(_TAIL_BYTES)
    except OSError as error:
        unread.add(path, error)
        return None
    gap = size > len(head) + len(tail)
    if gap:
        unread.add(path, f"{size // safe_io.MIB} MiB: only the first 8 MiB and the last 256 KiB were read")
    head_lines = head.count(b"\n") + 1
    # Metrics without a canonical name, such as ms-swift's memory(GiB), show the trainer, too.
    framework = next((name for name, prefix in _PREFIXES if re.search(rb"['\"]" + prefix, head)), "")
    rows: list[run_data.MetricRow | None] = []
    for row in metric_rows(path.name, head_lines + tail.count(b"\n"), head, tail, max_rows=MAX_STEPS):
        if len(rows) == MAX_STEPS - 1:
            unread.add(path, f"all after line {row.line}: more than {MAX_STEPS} steps")
        values = {meaning: value for meaning, (name, value) in row.metrics.items() if name != "train_loss"}
        # The lines between both parts were not counted.
        place = f"{row.source}, last 256 KiB" if gap and row.line > head_lines else f"{row.source}:{row.line}"
        rows.append(run_data.MetricRow(row.step, values, dict(row.metrics.values()), place, framework))
    summary = {match[1].decode(): _float(match[2].decode()) for match in _SUMMARY.finditer(head + tail)}
    printed = {name: value for name, value in summary.items() if value is not None}
    is_summary = {"train_runtime", "train_steps_per_second"} <= set(printed)
    return _series("log", [*rows, run_data.MetricRow(None, {}, printed, path.name) if is_summary else None])
