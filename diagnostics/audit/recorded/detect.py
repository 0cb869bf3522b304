"""Choose the reader of each file of a run, by its name or else by its first line."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from diagnostics import safe_io
from diagnostics.audit.recorded import metric_files, sample_files
from diagnostics.audit.recorded.common import MAX_LINE, Reading, parse_object, step_in_name
from diagnostics.audit.recorded.run_data import (
    Checkpoint,
    MetricSeries,
    Recording,
    RunArtifacts,
    UnreadInputs,
)

_MAX_DEPTH, _MAX_ENTRIES, _MAX_SERIES, _MAX_RECORDINGS = 7, 50_000, 16, 4
_LOGS = (".log", ".out", ".err", ".txt")
_NAMES = (
    ("parquet", re.compile(r"completions_\d+\.parquet")),
    ("state", re.compile(r"trainer_state\.json")),
    ("summary", re.compile(r"wandb-summary\.json")),
    ("jsonl", re.compile(r".+\.jsonl")),
    ("events", re.compile(r"events\.out\.tfevents\..+")),
    ("wandb", re.compile(r".+\.wandb")),
    (
        "weights",
        re.compile(r"(?!.*(?:optimizer|generators|scheduler|step-\d{6}-[0-9a-f]{8})).+\.safetensors"),
    ),
)
_METRICS = ("state", "lines", "events", "summary", "log")
_READERS: dict[str, Callable[[Path, UnreadInputs], MetricSeries | None]] = {
    "state": metric_files.read_trainer_state, "lines": metric_files.read_lines, "events": metric_files.read_events,
    "summary": metric_files.read_summary, "log": metric_files.read_log,
}  # fmt: skip


def read_run(path: Path) -> RunArtifacts:
    """Read a run's folder, or one file of it."""
    reading = Reading()
    unread = reading.unread
    kinds: defaultdict[str, list[Path]] = defaultdict(list)
    for file in _walk(path, unread) if path.is_dir() else [path]:
        kinds[_detect_kind(file, named=file == path)].append(file)
    for file in kinds["broken"]:
        unread.add(file, "its first line is not a JSON object")
    if not any(kinds[kind] for kind in _METRICS):
        for file in kinds["wandb"]:
            unread.add(
                file, "W&B's binary log is not read: export it with `wandb sync` or give wandb-summary.json"
            )
    recordings, series = tuple(_recordings(kinds, reading)), tuple(_series(kinds, unread))
    return RunArtifacts(recordings, series, tuple(_checkpoints(kinds["weights"])), unread)


def _walk(root: Path, unread: UnreadInputs) -> Iterator[Path]:
    """Yield all files below a folder; links to folders are not followed."""
    folders, count = [(root, 0)], 0
    while folders:
        folder, depth = folders.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            unread.add(folder, error.strerror or str(error))
            continue
        count += len(entries)
        if count > _MAX_ENTRIES:
            unread.add(root, f"more than {_MAX_ENTRIES} files: the rest was not read")
            return
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)
            elif depth < _MAX_DEPTH and not entry.name.startswith("."):
                folders.append((Path(entry.path), depth + 1))


def _detect_kind(path: Path, *, named: bool) -> str:
    """Return the kind of a file, empty for none; `named` is whether the user named it."""
    kind = next((kind for kind, pattern in _NAMES if pattern.fullmatch(path.name)), "")
    if kind == "jsonl":
        return _json_kind(path)
    if not kind and named:
        return _content_kind(path)
    return kind or ("log" if path.suffix in _LOGS else "")


def _content_kind(path: Path) -> str:
    """Detect a file's kind by its content, if its name does not show it."""
    if path.suffix == ".parquet":
        return "parquet"
    try:
        size, head = path.stat().st_size, safe_io.read_head(path, MAX_LINE)
    except OSError:
        return "log"
    document = parse_object(head) if size <= MAX_LINE else None
    if document is not None and metric_files.is_trainer_state(document):
        return "state"
    kind = _json_kind(path) if head.lstrip().startswith(b"{") else ""
    return "log" if kind in {"", "broken"} else kind


def _json_kind(path: Path) -> str:
    """Return the kind of a file of JSON lines, by its first object."""
    try:
        with safe_io.open_regular(path) as file:
            entry = parse_object(file.readline(MAX_LINE))
    except OSError:
        return "broken"
    return "broken" if entry is None else sample_files.detect_format(entry) or "lines"


def _recordings(kinds: dict[str, list[Path]], reading: Reading) -> Iterator[Recording]:
    recordings = [sample_files.read_parquet(paths, reading) for paths in _by_folder(kinds["parquet"])]
    for kind in ("verl", "swift"):
        folders = _by_folder(kinds[kind])
        recordings += [sample_files.read_json_samples(kind, paths, reading) for paths in folders]
    rollouts = [sample_files.read_rollouts(path, reading) for path in kinds["rollouts"][:_MAX_RECORDINGS]]
    # completions.jsonl has the same samples with less about them.
    for path in kinds["completions"][:_MAX_RECORDINGS] if not any(rollouts) else []:
        recordings.append(sample_files.read_json_samples("completions", [path], reading))
    return (recording for recording in recordings + rollouts if recording is not None)


def _by_folder(paths: list[Path]) -> list[list[Path]]:
    folders: dict[Path, list[Path]] = {}
    for path in paths:
        folders.setdefault(path.parent, []).append(path)
    return list(folders.values())[:_MAX_RECORDINGS]


def _series(kinds: dict[str, list[Path]], unread: UnreadInputs) -> Iterator[MetricSeries]:
    for kind in _METRICS:
        paths = metric_files.newest_states(kinds[kind]) if kind == "state" else kinds[kind]
        for path in paths[:_MAX_SERIES]:
            if series := _READERS[kind](path, unread):
                yield series
        if len(paths) > _MAX_SERIES:
            more = f"{len(paths) - _MAX_SERIES} more files of this kind were not read"
            unread.add(paths[_MAX_SERIES].parent, more)


def _checkpoints(paths: list[Path]) -> list[Checkpoint]:
    """Return the folders with weights, in the order of the numbers in their names."""
    folders: dict[Path, list[Path]] = {}
    for path in paths:
        folders.setdefault(path.parent, []).append(path)
    checkpoints = [
        Checkpoint(
            step_in_name(folder), folder, tuple(sorted(files)[:512]), (folder / "config.json").is_file()
        )
        for folder, files in folders.items()
    ]
    return sorted(checkpoints, key=lambda checkpoint: (checkpoint.step, str(checkpoint.folder)))
