"""Audit a run's folder or file: read its samples, metrics and checkpoints, and run all checks.

A file's name selects its reader; if the name says nothing, its first line does.
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from diagnostics import safe_io
from diagnostics.audit.metrics import check_learning, check_metrics
from diagnostics.audit.recorded import metric_files, sample_files
from diagnostics.audit.recorded.advantages import check_advantages
from diagnostics.audit.recorded.checkpoints import check_checkpoints
from diagnostics.audit.recorded.reward_function import check_reward_function, load_reward
from diagnostics.audit.recorded.run_data import (
    MAX_LINE,
    Checkpoint,
    MetricSeries,
    Reading,
    Recording,
    RunArtifacts,
    UnreadInputs,
    parse_object,
    step_in_name,
)
from diagnostics.audit.recorded.samples import check_data, check_samples
from diagnostics.audit.recorded.sampling_estimation import check_texts, estimate_streams
from diagnostics.audit.recorded.token_streams import check_masks, check_streams
from diagnostics.audit.results import RECORDED, Audit, AuditError, Note, Result, note, skipped
from diagnostics.output import progress

_MAX_SHOWN = 12
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


def audit_run(
    path: Path,
    *,
    checkpoint: Path | None = None,
    tokens: int = 4096,
    reward: str = "",
    expected: Mapping[str, float] | None = None,
) -> Audit:
    """Audit a run's folder or one file of it; cheap checks first.

    Args:
        path: The folder or file.
        checkpoint: Weights that sampled the texts; None for the run's own.
        tokens: Tokens of text to compute at most.
        reward: `module:function` or `file.py:function` to call again; empty for none.
        expected: The trainer's temperature, top_p and top_k; None for those in the recording, else 1, 1, 0.

    Raises:
        AuditError: Nothing readable is there.
    """
    began = time.monotonic()
    if not path.exists():
        raise AuditError(f"{path}: no such file or folder")
    if checkpoint is not None and not checkpoint.is_dir():
        raise AuditError(f"{checkpoint}: no such folder")
    function = load_reward(reward) if reward else None
    progress.update(str(path))
    run = read_run(path)
    if run.empty and not run.unread:
        raise AuditError(f"{path}: no run artifacts: no dump, no metrics, no checkpoint")
    samples = [*check_samples(run), *check_advantages(run)]
    results = [
        check_learning(
            run.series, [result for result in samples if result.topic in {"rewards", "advantages"}]
        ),
        *check_metrics(run.series),
        *check_data(run),
        *samples,
        *check_masks(run),
        *check_checkpoints(run),
        *check_reward_function(run, function),
        *check_streams(run, lambda recording: estimate_streams(run, recording, checkpoint)),
        *check_texts(run, checkpoint, tokens, _recorded_sampling(run) | dict(expected or {})),
    ]
    results += _report_unread(run.unread)
    return Audit(RECORDED, _subject(path, checkpoint, run), tuple(results), seconds=time.monotonic() - began)


def _recorded_sampling(run: RunArtifacts) -> dict[str, float]:
    """Return the sampling parameters in the recordings' settings."""
    settings = {key: value for recording in run.recordings for key, value in recording.settings.items()}
    recorded = {name: settings.get(f"sampling.{name}") for name in ("temperature", "top_p", "top_k")}
    return {name: float(value) for name, value in recorded.items() if isinstance(value, (int, float))}


def _subject(path: Path, checkpoint: Path | None, run: RunArtifacts) -> dict[str, str]:
    """Return what was read, by role."""
    subject = {"run": str(path)} | ({"checkpoint": str(checkpoint)} if checkpoint is not None else {})
    for recording in run.recordings:
        total, read = recording.files
        part = "" if total == read else f", {read} of {total} files"
        subject[recording.kind] = f"{len(recording.rows)} samples of {len(recording.steps())} steps{part}"
    for series in run.series:
        subject.setdefault(series.kind, f"{len(series.rows)} lines of metrics")
    return subject | ({"checkpoints": str(len(run.checkpoints))} if run.checkpoints else {})


def _report_unread(unread: UnreadInputs) -> list[Result]:
    """Report inputs that were not read; the audit is then incomplete."""
    if not unread:
        return []
    count, (place, reason) = len(unread), unread[0]
    need, name = "{first} as a whole: {why} ({count} in all)", PurePath(place).name
    result = skipped("files", "want_whole_files", need, decisive=True, first=name, why=reason, count=count)
    notes = [Note("unread", reason, {"why": reason}, place) for place, reason in unread[:_MAX_SHOWN]]
    if count > _MAX_SHOWN:
        notes.append(note("unread_more", "and {count} more", count=count - _MAX_SHOWN))
    return [replace(result, evidence=tuple(notes), count=count)]


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
    count = 0

    def report(error: OSError) -> None:
        unread.add(error.filename, error.strerror or str(error))

    for folder, folders, files in os.walk(root, onerror=report):
        is_deep = len(Path(folder).relative_to(root).parts) >= _MAX_DEPTH
        folders[:] = [] if is_deep else sorted(name for name in folders if not name.startswith("."))
        count += len(folders) + len(files)
        if count > _MAX_ENTRIES:
            unread.add(root, f"more than {_MAX_ENTRIES} files: the rest was not read")
            return
        yield from (Path(folder, name) for name in sorted(files))


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


def _limit(items: list[Any], most: int, unread: UnreadInputs) -> list[Any]:
    """Return the first of some files or lists of files; the others are not read."""
    if len(items) > most:
        first = items[most]
        folder = (first if isinstance(first, Path) else first[0]).parent
        unread.add(folder, f"{len(items) - most} more of this kind were not read")
    return items[:most]


def _by_folder(paths: list[Path]) -> list[list[Path]]:
    folders: defaultdict[Path, list[Path]] = defaultdict(list)
    for path in paths:
        folders[path.parent].append(path)
    return list(folders.values())


def _recordings(kinds: dict[str, list[Path]], reading: Reading) -> Iterator[Recording]:
    folders = {
        kind: _limit(_by_folder(kinds[kind]), _MAX_RECORDINGS, reading.unread)
        for kind in ("parquet", "verl", "swift")
    }
    recordings = [sample_files.read_parquet(paths, reading) for paths in folders["parquet"]]
    for kind in ("verl", "swift"):
        recordings += [sample_files.read_json_samples(kind, paths, reading) for paths in folders[kind]]
    files = _limit(kinds["rollouts"], _MAX_RECORDINGS, reading.unread)
    rollouts = [sample_files.read_rollouts(path, reading) for path in files]
    if not any(rollouts):  # completions.jsonl has the same samples with less about them
        files = _limit(kinds["completions"], _MAX_RECORDINGS, reading.unread)
        recordings += [sample_files.read_json_samples("completions", [path], reading) for path in files]
    return (recording for recording in recordings + rollouts if recording is not None)


def _series(kinds: dict[str, list[Path]], unread: UnreadInputs) -> Iterator[MetricSeries]:
    for kind in _METRICS:
        paths = metric_files.newest_states(kinds[kind]) if kind == "state" else kinds[kind]
        for path in _limit(paths, _MAX_SERIES, unread):
            if series := _READERS[kind](path, unread):
                yield series


def _checkpoints(paths: list[Path]) -> list[Checkpoint]:
    """Return the folders with weights, in the order of the numbers in their names."""
    checkpoints = []
    for files in _by_folder(paths):
        folder = files[0].parent
        can_load = (folder / "config.json").is_file()
        checkpoints.append(Checkpoint(step_in_name(folder), folder, tuple(sorted(files)[:512]), can_load))
    return sorted(checkpoints, key=lambda checkpoint: (checkpoint.step, str(checkpoint.folder)))
