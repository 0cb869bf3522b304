"""What a run left behind: dumps, logs, checkpoints."""

from __future__ import annotations

import time
from pathlib import PurePath
from typing import TYPE_CHECKING

from diagnostics.audit.errors import AuditError
from diagnostics.audit.model import CLEAN, NOT_ASKED, RECORDED, Audit, Fact, ProbeAnswer
from diagnostics.audit.recorded import found
from diagnostics.audit.recorded.questions import (
    advantages,
    contradictions,
    data_order,
    loss_masks,
    rewards_again,
    samples,
    stream_fit,
    stream_laws,
    text_law,
    weights,
)
from diagnostics.output import pulse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from diagnostics.audit.recorded.rows import Remains, Unread

_TOLD = 12


def audit_run(
    path: Path,
    *,
    checkpoint: Path | None = None,
    tokens: int = 4096,
    reward: str = "",
    asked: Mapping[str, float] | None = None,
) -> Audit:
    """Judges what lies in a folder or file of a run.

    Args:
        path: A folder of a run, or one file of it.
        checkpoint: The weights that the text is judged by; None: those that lie in the folder.
        tokens: At most so many tokens of the text are run through the model.
        reward: `module:function` or `file.py:function`, which is then called; empty: none.
        asked: What the trainer computes with: temperature, top_p, top_k; None: as the run itself says, else 1, 1, 0.

    Raises:
        AuditError: There is nothing there that it can read.
    """
    began = time.monotonic()
    if not path.exists():
        raise AuditError(f"{path}: no such file or folder")
    if checkpoint is not None and not checkpoint.is_dir():
        raise AuditError(f"{checkpoint}: no such folder")
    function = rewards_again.load(reward) if reward else None
    pulse.reading(str(path))
    remains = found.remains(path)
    if remains.empty and not remains.unread:
        raise AuditError(f"{path}: nothing that a run leaves: no dump, no metrics, no checkpoint")
    unread = list(remains.unread)
    answers = [
        *data_order.ask(remains),
        *advantages.ask(remains),
        *samples.ask(remains),
        *loss_masks.ask(remains),
        *stream_laws.ask(remains, stream_fit.Weights(remains, checkpoint, unread).law),
        *rewards_again.ask(remains, function),
        *text_law.ask(remains, checkpoint, tokens, unread, _asked(remains) | dict(asked or {})),
        *weights.ask(remains, unread),
        *contradictions.ask(remains),
    ]
    excluded = sorted({each.family.partition("/")[0] for each in answers if each.outcome == CLEAN})
    answers = [*answers, contradictions.curves(remains, excluded), *_unread(unread)]
    return Audit(
        RECORDED, _subject(path, checkpoint, remains), tuple(answers), seconds=time.monotonic() - began
    )


def _asked(remains: Remains) -> dict[str, float]:
    """What the run itself says that it sampled with."""
    told = {}
    for recording in remains.recordings:
        for name in ("temperature", "top_p", "top_k"):
            value = recording.settings.get(f"sampling.{name}")
            if isinstance(value, (int, float)):
                told[name] = float(value)
    return told


def _subject(path: Path, checkpoint: Path | None, remains: Remains) -> dict[str, str]:
    subject = {"run": str(path)}
    if checkpoint is not None:
        subject["checkpoint"] = str(checkpoint)
    for recording in remains.recordings:
        there, read = recording.files
        part = "" if there == read else f", {read} of {there} files"
        steps = recording.steps()
        subject[recording.kind] = f"{len(recording.rows)} samples of {len(steps)} steps{part}"
    for series in remains.series:
        subject.setdefault(series.kind, f"{len(series.rows)} lines of metrics")
    if remains.checkpoints:
        subject["checkpoints"] = str(len(remains.checkpoints))
    return subject


def _unread(unread: Iterable[Unread]) -> list[ProbeAnswer]:
    """What is there and was not judged: never fine, and never a reason to be silent of the rest."""
    told = [Fact("unread", {"why": each.why}, each.place) for each in unread]
    if not told:
        return []
    first = {"first": PurePath(told[0].place).name, "why": told[0].values["why"], "count": len(told)}
    more = (Fact("unread_more", {"count": len(told) - _TOLD}),) if len(told) > _TOLD else ()
    return [
        ProbeAnswer(
            "files", NOT_ASKED, "files", count=len(told), facts=(*told[:_TOLD], *more),
            wanted=(Fact("want_whole_files", first),), decisive=True,
        )
    ]  # fmt: skip
