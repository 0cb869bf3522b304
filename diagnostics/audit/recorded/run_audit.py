"""Audit of recorded run artifacts: dumps of samples, metrics, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath

from diagnostics.audit.metrics import check_learning, check_metrics
from diagnostics.audit.recorded import detect
from diagnostics.audit.recorded.advantages import check_advantages
from diagnostics.audit.recorded.checkpoints import check_checkpoints
from diagnostics.audit.recorded.reward_function import check_reward_function, load_reward
from diagnostics.audit.recorded.run_data import RunArtifacts, UnreadInputs
from diagnostics.audit.recorded.samples import check_data, check_samples
from diagnostics.audit.recorded.stream_estimation import estimate_streams
from diagnostics.audit.recorded.text_sampling import check_texts
from diagnostics.audit.recorded.token_streams import check_masks, check_streams
from diagnostics.audit.results import RECORDED, Audit, AuditError, Note, Result, note, skipped
from diagnostics.output import progress

_MAX_SHOWN = 12


def audit_run(
    path: Path, *, checkpoint: Path | None = None, tokens: int = 4096, reward: str = "",
    expected: Mapping[str, float] | None = None,
) -> Audit:  # fmt: skip
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
    run = detect.read_run(path)
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
