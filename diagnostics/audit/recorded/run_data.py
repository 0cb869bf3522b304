"""Artifacts of a run in one form for every trainer: samples, metrics, checkpoints, and what could not be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnostics.output.redact import mask_and_cut


@dataclass(frozen=True, slots=True)
class Tokens:
    """A sample's tokens. Every stream is as long as `ids`, or empty if it was not recorded.

    Attributes:
        ids: Prompt and completion.
        prompt: Number of prompt tokens; -1 if unknown.
        trained: Whether a token is in the loss.
        engine: Log-probs that the engine reported; None for tokens without one, as the prompt's.
        trainer: Log-probs that the trainer computed.
        versions: Policy version that sampled each token.
        ended: `stop`, `length`, or empty.
    """

    ids: tuple[int, ...]
    prompt: int = -1
    trained: tuple[bool, ...] = ()
    engine: tuple[float | None, ...] = ()
    trainer: tuple[float | None, ...] = ()
    versions: tuple[int, ...] = ()
    ended: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample.

    Attributes:
        reward: The reward that advantages are computed from, if known.
        scores: Reward of each function, before weights.
        group: The group's name in the recording; empty for groups by equal prompt.
        chat: The prompt as messages, if it was recorded so.
        columns: Other columns, as the right answer.
        place: File and line.
    """

    step: int
    prompt: str
    completion: str
    reward: float | None = None
    advantage: float | None = None
    scores: Mapping[str, float | None] = field(default_factory=dict)
    group: str = ""
    chat: Any = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    tokens: Tokens | None = None
    place: str = ""

    @property
    def total_reward(self) -> float | None:
        """Return the recorded reward, or the sum of the functions' scores."""
        if self.reward is not None:
            return self.reward
        scores = [score for score in self.scores.values() if score is not None]
        return sum(scores) if scores else None


@dataclass(frozen=True)
class Recording:
    """Samples of one kind of file.

    Attributes:
        kind: Name of the file format.
        rows: Samples in the order of the file.
        settings: Sampling and training settings in the recording, as `section.key`.
        files: Number of files found, and of files read.
    """

    kind: str
    rows: tuple[Sample, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[int, int] = (0, 0)

    def steps(self) -> dict[int, list[Sample]]:
        """Return the samples of each step, in order."""
        steps: dict[int, list[Sample]] = {}
        for row in self.rows:
            steps.setdefault(row.step, []).append(row)
        return dict(sorted(steps.items()))


@dataclass(frozen=True, slots=True)
class MetricRow:
    """Metrics of one step.

    Attributes:
        step: None if the file does not say.
        values: By canonical name (`reward`, `grad_norm`, …).
        printed: By the name in the file.
        place: File and line.
    """

    step: int | None
    values: Mapping[str, float]
    printed: Mapping[str, float]
    place: str


@dataclass(frozen=True)
class MetricSeries:
    """Metrics of one file, in order."""

    kind: str
    rows: tuple[MetricRow, ...]


@dataclass(frozen=True)
class Checkpoint:
    """A folder with safetensors.

    Attributes:
        step: Number in the folder's name; -1 if it has none.
        loads: Whether transformers can load the folder.
    """

    step: int
    folder: Path
    files: tuple[Path, ...]
    loads: bool = False


class UnreadInputs(list[tuple[str, str]]):
    """Places of inputs that exist and were not checked, each with the reason; handed through all readers."""

    def add(self, place: object, reason: str | Exception) -> None:
        """Add an input; of an error the first line of its message, masked, or its name."""
        if isinstance(reason, Exception):
            lines = str(reason).strip().splitlines()
            reason = mask_and_cut(lines[0], 200) if lines else type(reason).__name__
        self.append((str(place), reason))


@dataclass(frozen=True)
class RunArtifacts:
    """Everything that was read of a run."""

    recordings: tuple[Recording, ...] = ()
    series: tuple[MetricSeries, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    unread: UnreadInputs = field(default_factory=UnreadInputs)

    @property
    def empty(self) -> bool:
        """Return whether nothing was read that a check could use."""
        return not (self.recordings or self.series or self.checkpoints)


def group_samples(rows: Sequence[Sample]) -> list[list[Sample]]:
    """Split the samples of one step into groups: by recorded group, else by equal prompt.

    >>> [len(group) for group in group_samples([Sample(1, "a", "x"), Sample(1, "b", "y"), Sample(1, "a", "z")])]
    [2, 1]
    """
    groups: dict[tuple[str, str], list[Sample]] = {}
    for row in rows:
        groups.setdefault((row.group, "") if row.group else ("", row.prompt), []).append(row)
    return list(groups.values())
