"""Define the data model of a recorded run, and what the readers of its files share.

`RunArtifacts` has recordings of samples (`group_samples` divides those of a step), series of metrics, and checkpoints.
The readers share size limits (`ReadBudget`), the list of unread inputs (`UnreadInputs`), a reader of JSON lines
(`read_json_lines`), and conversions of untrusted values, which return None or an empty value for a wrong type.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnostics import safe_io
from diagnostics.output.redact import truncate

# Limits: bytes of one file, one run and one line; characters of one text; samples of one run; files of one recording.
MAX_FILE, MAX_RUN, MAX_LINE = 64 * safe_io.MIB, 192 * safe_io.MIB, 32 * safe_io.MIB
MAX_TEXT, MAX_ROWS, MAX_FILES = 64 * safe_io.KIB, 60_000, 200
READ_S = 60.0
"""Limit of processor time for one file."""
JsonObject = dict[str, Any]
READ_ERRORS = (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a completion. Each stream has one value per id, or is empty if it was not recorded.

    Attributes:
        in_loss: For each token, whether it is in the loss.
        engine_logprobs: Log-probs that the engine reported; None for tokens without one.
        trainer_logprobs: Log-probs that the trainer computed.
        policy_versions: Policy version that sampled each token.
        finish_reason: `stop`, `length`, or empty.
    """

    ids: tuple[int, ...]
    in_loss: tuple[bool, ...] = ()
    engine_logprobs: tuple[float | None, ...] = ()
    trainer_logprobs: tuple[float | None, ...] = ()
    policy_versions: tuple[int, ...] = ()
    finish_reason: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One recorded completion with its prompt and reward.

    Attributes:
        reward: The reward that advantages are computed from, if known.
        scores: Reward of each function, before weights.
        group: The group's name in the recording; empty if samples are grouped by equal prompts.
        columns: Other columns of the data set, such as the reference answer.
        place: File and line.
    """

    step: int
    prompt: str
    completion: str
    reward: float | None = None
    advantage: float | None = None
    scores: Mapping[str, float | None] = field(default_factory=dict)
    group: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    tokens: Tokens | None = None
    place: str = ""

    @property
    def total_reward(self) -> float | None:
        """The recorded reward, or else the sum of the functions' scores; None if there is neither."""
        if self.reward is not None:
            return self.reward
        scores = [score for score in self.scores.values() if score is not None]
        return sum(scores) if scores else None


@dataclass(frozen=True)
class Recording:
    """Samples of one format in one folder, or the rollouts in one file.

    Attributes:
        kind: Name of the file format.
        rows: Samples in the order of the file.
        files: Number of files found, and of files read; for rollouts, of steps.
    """

    kind: str
    rows: tuple[Sample, ...]
    files: tuple[int, int] = (0, 0)

    @property
    def framework(self) -> str:
        """The framework, if verl or ms-swift writes this format; otherwise empty."""
        return {"STEP.jsonl": "verl", "completions.jsonl": "ms-swift"}.get(self.kind, "")

    def steps(self) -> dict[int, list[Sample]]:
        """Return the samples by step, in the order of the steps."""
        steps: dict[int, list[Sample]] = {}
        for row in self.rows:
            steps.setdefault(row.step, []).append(row)
        return dict(sorted(steps.items()))


@dataclass(frozen=True, slots=True)
class MetricRow:
    """Metrics of one step.

    Attributes:
        step: Training step; None if the file does not have it.
        values: Values by canonical name (`reward`, `grad_norm`, …).
        printed: Values by the name in the file.
        place: File and line.
        framework: The trainer that printed it, if other names in its log show that.
    """

    step: int | None
    values: Mapping[str, float]
    printed: Mapping[str, float]
    place: str
    framework: str = ""


@dataclass(frozen=True)
class MetricSeries:
    """Metrics of one source, in order; `kind` names the source, as trainer_state.json."""

    kind: str
    rows: tuple[MetricRow, ...]


@dataclass(frozen=True)
class Checkpoint:
    """A folder with safetensors.

    Attributes:
        step: Number in the folder's name; -1 if it has none.
    """

    step: int
    folder: Path
    files: tuple[Path, ...]


class UnreadInputs(list[tuple[str, str]]):
    """Inputs that exist and were not read, or not as a whole, as (path, reason)."""

    def add(self, place: object, reason: str | BaseException) -> None:
        """Add an input and the reason; an exception is reduced to its first line, of at most 200 characters."""
        if isinstance(reason, BaseException):
            lines = str(reason).strip().splitlines()
            reason = truncate(lines[0], 200) if lines else type(reason).__name__
        self.append((str(place), reason))


@dataclass(frozen=True)
class RunArtifacts:
    """Everything that was read of a run."""

    recordings: tuple[Recording, ...] = ()
    series: tuple[MetricSeries, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    unread: UnreadInputs = field(default_factory=UnreadInputs)


def group_samples(rows: Sequence[Sample]) -> list[list[Sample]]:
    """Split the samples of one step into groups: by recorded group, else by equal prompt.

    >>> [len(group) for group in group_samples([Sample(1, "a", "x"), Sample(1, "b", "y"), Sample(1, "a", "z")])]
    [2, 1]
    """
    return [[rows[index] for index in group] for group in group_indices(rows)]


def group_indices(rows: Sequence[Sample]) -> list[list[int]]:
    """Return the groups of `group_samples` as lists of indices into the rows."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault((row.group, "") if row.group else ("", row.prompt), []).append(index)
    return list(groups.values())


class ReadBudget:
    """The bytes and samples that may still be read of a run, and the inputs that were not read."""

    def __init__(self) -> None:
        self.bytes, self.rows, self.unread = MAX_RUN, MAX_ROWS, UnreadInputs()

    def spend(self, size: int) -> None:
        """Subtract bytes from the budget.

        Raises:
            ValueError: Fewer bytes are left; nothing is subtracted.
        """
        if size > self.bytes:
            raise ValueError("over the limit of bytes that are read of one run")
        self.bytes -= size


def read_json_lines(
    path: Path, unread: UnreadInputs, max_bytes: int = MAX_FILE
) -> Iterator[tuple[int, JsonObject]]:
    """Yield (line number, object) of a JSON lines file; lines that are no object are added to `unread`.

    So are, as one entry, the lines beyond `max_bytes` bytes or from a line of 32 MiB on, which are not read.

    Raises:
        OSError: The file cannot be read at all.
    """
    size = 0
    with safe_io.open_regular(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), 1):
            size += len(line)
            complete = line.endswith(b"\n")
            if size > max_bytes or (not complete and len(line) == MAX_LINE):
                limit = f"over the size limit ({max_bytes // safe_io.MIB} MiB)"
                unread.add(path, f"line {number} and all after it: {limit}")
                return
            if not line.strip():
                continue
            if (value := parse_object(line)) is None:
                end = "" if complete else " (the file is cut off)"
                unread.add(path, f"line {number} is not a JSON object{end}")
            else:
                yield number, value


def parse_object(line: bytes) -> JsonObject | None:
    """Parse a JSON object; None for other JSON and for invalid text."""
    try:
        value = safe_io.parse_json(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def number(value: object) -> float | None:
    """Convert a number to float; None for anything else, including booleans, NaN and texts.

    >>> number("1"), number(True), number(2), number(float("nan"))
    (None, None, 2.0, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return None if math.isnan(value) else float(value)
    except OverflowError:
        return None


def numbers(value: object) -> tuple[float | None, ...]:
    """Convert a list's items to float, None for non-numbers; empty if the value is no list."""
    return tuple(map(number, value)) if isinstance(value, list) else ()


def whole_number(value: object) -> int | None:
    """Convert a whole number to int, also a float or a text of digits; None for anything else or too many digits."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12:
        return int(value)
    converted = number(value)
    is_whole = converted is not None and abs(converted) < 1e15 and converted == converted // 1
    return int(converted) if converted is not None and is_whole else None


def text_of(value: object) -> str:
    r"""Return a prompt or completion as text of at most 65,536 characters; empty for a wrong type.

    Secrets in a longer text are masked before it is cut. The contents of the first 1000 messages are joined by
    newlines.

    >>> text_of([{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}])
    '2+2\n4'
    """
    if isinstance(value, str):
        return truncate(value, MAX_TEXT)
    if isinstance(value, dict):
        return text_of(value.get("content", value.get("text")))
    if isinstance(value, (list, tuple)):
        return truncate("\n".join(filter(None, map(text_of, value[:1000]))), MAX_TEXT)
    return ""


def step_in_name(path: Path) -> int:
    """Return the last number in a file's or folder's name before the first dot; -1 if there is none.

    >>> step_in_name(Path("completions_00012.parquet")), step_in_name(Path("policy"))
    (12, -1)
    """
    digits = re.findall(r"[0-9]+", path.name.partition(".")[0][:255])
    return int(digits[-1][-12:]) if digits else -1
