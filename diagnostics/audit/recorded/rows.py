"""What a run left behind, whichever trainer wrote it: samples, metrics, checkpoints, and what could not be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Tokens:
    """One sample by its tokens: every stream is as long as `ids`, or empty where it was not recorded.

    Attributes:
        ids: Of prompt and completion.
        prompt: How many of them are the prompt's; -1 where nothing says so.
        trained: Whether a token is in the loss.
        engine: What the engine sampled with; None where it says nothing, as of the prompt.
        trainer: What the trainer computed of the same tokens.
        versions: The policy version that sampled each token.
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
class Row:
    """One sample.

    Attributes:
        step: Of the trainer, as it was written.
        prompt: As text; empty where only tokens were recorded.
        completion: As text.
        reward: What the advantage is made of, as far as that is known.
        advantage: None where it was not recorded.
        scores: Reward by function, before weights.
        group: What the recording itself calls its group; empty: those of a step with the same prompt.
        chat: The prompt as messages, where it was given so.
        columns: What else stands there, as the right answer.
        tokens: The sample by its tokens.
        place: File and line or row.
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


@dataclass(frozen=True)
class Recording:
    """The samples of one kind of file.

    Attributes:
        kind: Which reader read it, by what the files are called.
        rows: In the order in which they were written.
        settings: What the recording itself says of how it was sampled and trained, by the names of `grpo_core`.
        whole: Whether a step's rows are all of that step's.
        files: How many files there were, and how many of them were read.
    """

    kind: str
    rows: tuple[Row, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = True
    files: tuple[int, int] = (0, 0)

    def steps(self) -> dict[int, list[Row]]:
        """The rows of each step, in order."""
        found: dict[int, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.step, []).append(row)
        return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Logged:
    """The metrics of one step.

    Attributes:
        step: None where the file does not say.
        values: By the name that is meant, as triage reads them.
        said: By the name that is printed.
        place: File and line.
    """

    step: int | None
    values: Mapping[str, float]
    said: Mapping[str, float]
    place: str


@dataclass(frozen=True)
class Series:
    """The metrics of one file, in order."""

    kind: str
    rows: tuple[Logged, ...]


@dataclass(frozen=True)
class Checkpoint:
    """Weights as safetensors in one folder.

    Attributes:
        step: By the folder's name; -1 where it has no number.
        loads: Whether transformers can load it by its folder.
    """

    step: int
    folder: Path
    files: tuple[Path, ...]
    loads: bool = False


@dataclass(frozen=True)
class Unread:
    """Something that is there and was not judged, and why."""

    place: str
    why: str


@dataclass(frozen=True)
class Remains:
    """Everything that was read of a run."""

    recordings: tuple[Recording, ...] = ()
    series: tuple[Series, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    unread: tuple[Unread, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing of it can be judged."""
        return not (self.recordings or self.series or self.checkpoints)


def groups_of(rows: list[Row]) -> list[list[Row]]:
    """The groups of one step: by what the recording calls them, else by the same prompt.

    >>> [len(group) for group in groups_of([Row(1, "a", "x"), Row(1, "b", "y"), Row(1, "a", "z")])]
    [2, 1]
    """
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.group, "") if row.group else ("", row.prompt), []).append(row)
    return list(found.values())
