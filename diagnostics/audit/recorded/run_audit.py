"""Audit a run's folder or file: read its samples, metrics and checkpoints, and run all checks.

`audit_run` returns the audit; it runs the code of the reward function that the user names, if any. `read_run` finds and
reads the files. A file's name selects its reader. The first line selects the reader of `*.jsonl`. If the user gives a
log or a file with an unknown name, its content selects the reader. Depth, number of files, bytes and samples are
limited. `report_unread` lists what could not be read; the audit is then not clean. `read_metrics` reads one file of
metrics, for `--watch`.
"""

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from diagnostics import safe_io
from diagnostics.audit.recorded import metric_files, run_data, sample_checks, sample_files
from diagnostics.audit.recorded.advantages import check_advantages
from diagnostics.audit.recorded.checkpoints import check_checkpoints
from diagnostics.audit.recorded.completion_texts import check_texts
from diagnostics.audit.recorded.reward_function import check_reward_function, load_reward_function
from diagnostics.audit.recorded.token_streams import check_masks, check_streams
from diagnostics.audit.results import (
    RECORDED,
    Audit,
    AuditError,
    Note,
    Result,
    name_options,
    put_causes_first,
    skipped,
)
from diagnostics.audit.training_curves import Curves, check_learning, check_metrics
from diagnostics.cpu_limit import CpuLimitError, cpu_limit
from diagnostics.fixes import count_of
from diagnostics.output import progress
from diagnostics.output.redact import name_below

_MAX_SHOWN_UNREAD = 12
# Limit of processor time for the checks, and for each sample in addition.
_CHECK_S, _CHECK_SAMPLE_S = 30.0, 0.01
_MAX_DEPTH, _MAX_ENTRIES, _MAX_SERIES, _MAX_RECORDINGS = 7, 50_000, 16, 4
_NAME_PATTERNS = {
    "parquet": re.compile(r"completions_\d+\.parquet"),
    "state": re.compile(r"trainer_state\.json"),
    "jsonl": re.compile(r".+\.jsonl"),
    "weights": re.compile(r"(?!.*(?:optimizer|generators|scheduler|step-\d{6}-[0-9a-f]{8})).+\.safetensors"),
    "log": re.compile(r".+\.(?:log|out|err|txt)"),
}
_METRIC_READERS: dict[str, Callable[[Path, run_data.UnreadInputs], run_data.MetricSeries | None]] = {
    "state": metric_files.read_trainer_state,
    "lines": metric_files.read_lines,
    "log": metric_files.read_log,
}
PathsByKind = dict[str, list[Path]]
# The checks of each recording by topic, and the note that says what all recordings lack if none has a result.
_CHECKS: dict[str, tuple[Callable[[run_data.Recording], Result | None], str]] = {
    "data": (sample_checks.check_prompt_order, "want_completions"),
    "pairing": (sample_checks.check_pairing, ""),
    "ends": (sample_checks.check_ends, ""),
    "rewards": (sample_checks.check_rewards, ""),
    "advantages": (check_advantages, "want_advantages"),
    "masks": (check_masks, "want_tokens"),
    "streams": (check_streams, "want_both_streams"),
}


def audit_run(path: Path, reward: str = "") -> Audit:
    """Audit a run's folder or one of its files.

    Args:
        path: The folder or file.
        reward: Reward function to call again, as `module:function` or `file.py:function`; empty for none.

    Raises:
        AuditError: There is no such file or folder, it has no run artifacts, or the reward function cannot be loaded.
        CpuLimitError: Finding what the files are, or the checks, takes too much processor time.
    """
    began = time.monotonic()
    if not path.exists():
        raise AuditError(f"{path}: no such file or folder")
    function = load_reward_function(reward) if reward else None
    progress.update(str(path))
    run = read_run(path)
    if not (run.recordings or run.series or run.checkpoints or run.unread):
        files = "trainer_state.json, *.jsonl of metrics or completions, completions_*.parquet, *.safetensors, a log"
        raise AuditError(f"{path}: no run artifacts: expected {files}")
    count = sum(len(entry.rows) for entry in run.recordings)
    with cpu_limit("checking the run", _CHECK_S + _CHECK_SAMPLE_S * count):
        samples = list(_check_recordings(run))
        rewards = [result for result in samples if result.topic in {"rewards", "advantages"}]
        results = put_causes_first(
            check_learning(run.series, rewards),
            *check_metrics(run.series),
            *check_texts(run),
            *samples,
            *check_checkpoints(run),
            *check_reward_function(run, function),
            *report_unread(run.unread),
        )
    names = [entry.framework for entry in run.recordings]
    names += [Curves(entry.rows).framework for entry in run.series]
    framework, seconds = next(filter(None, names), ""), time.monotonic() - began
    results = name_options(results, framework)
    return Audit(RECORDED, _subject(path, run), results, seconds=seconds, framework=framework)


def _check_recordings(run: run_data.RunArtifacts) -> Iterator[Result]:
    """Run each of `_CHECKS` on each recording; a topic without any result is skipped."""
    duplicates = partial(sample_checks.check_duplicates, series=run.series)
    for topic, (check, need) in (_CHECKS | {"samples": (duplicates, "want_completions")}).items():
        results = [result for result in map(check, run.recordings) if result]
        yield from results or ([skipped(topic, need)] if need else [])


def _subject(path: Path, run: run_data.RunArtifacts) -> dict[str, str]:
    """Return the report's subject: the path, and for each kind of input the counts of its recordings or first file."""
    subject = {"run": str(path)}
    for recording in run.recordings:
        total, read = recording.files
        cut = "" if total == read else f", {read} of {total} files"
        text = f"{count_of(len(recording.rows), 'sample')} of {count_of(len(recording.steps()), 'step')}{cut}"
        subject[recording.kind] = "; ".join(filter(None, [subject.get(recording.kind), text]))
    for series in run.series:
        subject.setdefault(series.kind, f"{count_of(len(series.rows), 'line')} of metrics")
    return subject | ({"checkpoints": str(len(run.checkpoints))} if run.checkpoints else {})


def report_unread(unread: run_data.UnreadInputs) -> list[Result]:
    """Return one result that lists the inputs that could not be read; none if all were read."""
    if not unread:
        return []
    count, (place, reason) = len(unread), unread[0]
    name = name_below(Path(place), Path(place).parent)
    result = skipped("files", "want_whole_files", decisive=True, first=name, why=reason, count=count)
    notes = (Note("unread", reason, {"why": reason}, place) for place, reason in unread[:_MAX_SHOWN_UNREAD])
    return [replace(result, evidence=tuple(notes), count=count)]


def read_run(path: Path) -> run_data.RunArtifacts:
    """Read a run's folder, or one file of it; inputs that cannot be read are listed in the result's `unread`."""
    budget = run_data.ReadBudget()
    kinds: PathsByKind = defaultdict(list)
    with cpu_limit("finding what the files are", run_data.READ_S):
        for file in _walk(path, budget.unread) if path.is_dir() else [path]:
            kinds[_detect_kind(file, budget.unread, named=file == path)].append(file)
    recordings, series = tuple(_read_recordings(kinds, budget)), tuple(_read_series(kinds, budget.unread))
    return run_data.RunArtifacts(recordings, series, _checkpoints(kinds["weights"]), budget.unread)


def read_metrics(path: Path, unread: run_data.UnreadInputs) -> run_data.MetricSeries | None:
    """Read one file of metrics, for `--watch`; None if it has none."""
    read = _METRIC_READERS.get(_detect_kind(path, unread, named=True))
    return read(path, unread) if read else None


def _walk(root: Path, unread: run_data.UnreadInputs) -> Iterator[Path]:
    """Yield the files below a folder, from 8 levels; the first deeper folder in each folder is listed as unread.

    At most 50,000 files and folders are counted. Hidden folders are skipped without a note; links to folders are
    not followed, and those out of the root, also to files, are listed as unread.
    """
    count, inside = 0, os.path.realpath(root)

    def report(error: OSError) -> None:
        unread.add(error.filename, error.strerror or str(error))

    for folder, folders, files in os.walk(root, onerror=report):
        is_deep = len(Path(folder).relative_to(root).parts) >= _MAX_DEPTH
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if is_deep and folders:
            unread.add(Path(folder, folders[0]), f"folders below level {_MAX_DEPTH} are not read")
            folders.clear()
        count += len(folders) + len(files)
        if count > _MAX_ENTRIES:
            unread.add(root, f"more than {_MAX_ENTRIES} files: the rest was not read")
            return
        for path in (Path(folder, name) for name in [*folders, *sorted(files)]):
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(inside):
                unread.add(path, "a link that leads out of the folder")
            elif path.name not in folders:
                yield path


def _detect_kind(path: Path, unread: run_data.UnreadInputs, *, named: bool) -> str:
    """Return the kind of a file by name or content, empty if it is no input; `named`: the user gave this path."""
    kind = next((kind for kind, pattern in _NAME_PATTERNS.items() if pattern.fullmatch(path.name)), "")
    if kind == "jsonl":
        kind = _json_kind(path)
        if not kind:
            unread.add(path, "its first line is not a JSON object")
    elif named and path.suffix == ".py":
        unread.add(path, "a Python script, not metrics")
    elif named and kind in {"", "log"}:
        kind = "parquet" if path.suffix == ".parquet" else _content_kind(path)
    return kind


def _content_kind(path: Path) -> str:
    """Detect a file's kind by its content: trainer_state.json, JSON lines, or else a log."""
    try:
        head = safe_io.read_head(path, run_data.MAX_LINE)
    except OSError:
        return "log"
    if metric_files.is_trainer_state(run_data.parse_object(head)):
        return "state"
    return (_json_kind(path) if head.lstrip().startswith(b"{") else "") or "log"


def _json_kind(path: Path) -> str:
    """Return the kind of a JSON lines file by its first object; empty if its first line is no object."""
    try:
        with safe_io.open_regular(path) as file:
            entry = run_data.parse_object(file.readline(run_data.MAX_LINE))
    except OSError:
        return ""
    return "" if entry is None else sample_files.detect_format(entry) or "lines"


def _limit(groups: Sequence[list[Path]], most: int, unread: run_data.UnreadInputs) -> Sequence[list[Path]]:
    """Return the first `most` groups of files; report the others as unread."""
    if len(groups) > most:
        unread.add(groups[most][0].parent, f"{len(groups) - most} more of this kind were not read")
    return groups[:most]


def _by_folder(paths: list[Path]) -> dict[Path, list[Path]]:
    folders: dict[Path, list[Path]] = {}
    for path in paths:
        folders.setdefault(path.parent, []).append(path)
    return folders


def _read_recordings(kinds: PathsByKind, budget: run_data.ReadBudget) -> Iterator[run_data.Recording]:
    """Yield at most four recordings of each format: one for each folder, of rollouts one for each file."""
    for kind in ("parquet", "verl", "swift", "rollouts"):
        paths = kinds[kind]
        groups = [[path] for path in paths] if kind == "rollouts" else list(_by_folder(paths).values())
        for group in _limit(groups, _MAX_RECORDINGS, budget.unread):
            if recording := sample_files.read_samples(kind, group, budget):
                yield recording


def _read_series(kinds: PathsByKind, unread: run_data.UnreadInputs) -> Iterator[run_data.MetricSeries]:
    """Yield the metrics of at most 16 files of each format."""
    for kind, read in _METRIC_READERS.items():
        paths = metric_files.newest_states(kinds[kind]) if kind == "state" else kinds[kind]
        for (path,) in _limit([[path] for path in paths], _MAX_SERIES, unread):
            try:
                with cpu_limit("reading it", run_data.READ_S):
                    entry = read(path, unread)
            except CpuLimitError as error:
                unread.add(path, error)
                continue
            if entry:
                yield entry


def _checkpoints(paths: list[Path]) -> tuple[run_data.Checkpoint, ...]:
    """Return the folders with weights, ordered by the step in their names."""
    checkpoints = [
        run_data.Checkpoint(run_data.step_in_name(folder), folder, tuple(sorted(files)[:512]))
        for folder, files in _by_folder(paths).items()
    ]
    return tuple(sorted(checkpoints, key=lambda checkpoint: (checkpoint.step, str(checkpoint.folder))))
