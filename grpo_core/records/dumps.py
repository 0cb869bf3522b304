"""Completion dumps of other trainers, and whether their advantages follow from their rewards.

Such dumps hold texts, no token ids and no log-probs: enough to look at groups and advantages, not to replay.

| trainer     | switched on by             | files                                                        |
|-------------|----------------------------|--------------------------------------------------------------|
| TRL 1.16.0  | `log_completions=True`     | `completions_<step>.parquet` in `<output_dir>/completions`   |
| verl 0.9.1  | `trainer.rollout_data_dir` | `<step>.jsonl`                                               |

TRL 0.28.0, 0.29.0 and 1.2.0 write such files, too; 0.16.1, 0.17.0, 0.24.0, 0.26.0 and 0.27.0 don't. A file has the
last `generation_batch_size` samples before the log, those of an evaluation among them, so its first group may be
the rest of one, and with `logging_steps` above 1 steps are left out.
"""

from __future__ import annotations

import io
import itertools
import json
import math
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError
from grpo_core.learn.advantages import configured, group_advantages
from grpo_core.records import given

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from grpo_core.config import LossConfig


# Trainers' numbers come from float32.
_LARGEST = 3.5e38
_MOST_SAID = 200


@dataclass(frozen=True)
class TextSample:
    """A completion as the dump has it.

    Attributes:
        prompt: The text; a conversation is JSON.
        completion: The text; a conversation is JSON.
        reward: What advantages are made of; None where no function had anything to say.
        scores: Further numbers by name, in TRL rewards by function; None where it had nothing to say.
        advantage: None in dumps without advantages.
    """

    prompt: str
    completion: str
    reward: float | None
    scores: Mapping[str, float | None]
    advantage: float | None = None


@dataclass(frozen=True)
class TextStep:
    """What was dumped of one step: its groups, each of the samples of one prompt."""

    step: int
    groups: list[list[TextSample]]


@dataclass(frozen=True)
class Oddity:
    """Something odd in a dump.

    Attributes:
        kind: `advantage` (it isn't what the rewards give), `group_size` (not a multiple of what was asked for),
            `zero_variance` (all rewards are equal) or `split_prompt` (an earlier group has the same prompt).
        group: Its place in the step, from 0.
        sample: Its place in the group, or that of the first one.
        found: The dump's advantage, or the group's size.
        expected: What it should be.
    """

    kind: str
    group: int
    sample: int = 0
    found: float | None = None
    expected: float | None = None


def read_trl_completions(path: Path, weights: Mapping[str, float] | None = None) -> list[TextStep]:
    """The Parquet files of TRL's GRPOTrainer; rows of the same prompt that stand side by side are a group.

    Args:
        path: A file, or the folder of all.
        weights: Reward function -> its weight. None: every column of numbers is a reward that counts once. A file
            has neither the weights nor a sign of which columns are rewards: those of `log_extra` look the same.

    Raises:
        ConfigError: pyarrow isn't installed, or a file is not what TRL writes.
    """
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError(f"{path}: Parquet is read by pyarrow: pip install pyarrow") from error

    def keyed(row: dict[str, Any]) -> tuple[str, TextSample]:
        counted = dict.fromkeys(_numbers(row), 1.0) if weights is None else weights
        scores = {name: _number(row[name]) for name in counted}
        said = [counted[name] * score for name, score in scores.items() if score is not None]
        prompt, reward = _text(row["prompt"]), sum(said) if said else None
        return prompt, TextSample(prompt, _text(row["completion"]), reward, scores, _number(row["advantage"]))

    def rows(file: Path) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        size = 0
        # By a few rows at a time: a page of kilobytes can say the same megabyte a million times.
        for batch in parquet.ParquetFile(io.BytesIO(given.read(file))).iter_batches(batch_size=64):
            size += batch.nbytes
            if size > given.LARGEST:
                raise ValueError(f"more than {given.LARGEST >> 30} GiB of rows: no step has them")
            found += batch.to_pylist()
        return found

    return _steps(path, "*.parquet", rows, keyed)


def read_verl_dump(path: Path) -> list[TextStep]:
    """JSON lines of verl; rows of the same prompt, or of the same `uid` where there is one, are a group.

    Wherever they stand: with `trainer.balance_batch`, its default, verl has reordered them to balance lengths.

    Args:
        path: A file, or the folder of all.

    Raises:
        ConfigError: A file is not what verl writes.
    """

    def group(row: dict[str, Any]) -> str:
        return str(row["uid"]).rsplit("_", 2)[0] if "uid" in row else str(row["input"])  # uid_session_output

    def keyed(row: dict[str, Any]) -> tuple[str, TextSample]:
        return group(row), TextSample(
            _text(row["input"]), _text(row["output"]), _number(row["score"]), _numbers(row)
        )

    def rows(file: Path) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in given.read(file).decode("utf-8").splitlines()]
        first = found[0] if found and isinstance(found[0], dict) else {}
        recorded = str(first.get("schema")).startswith("grpo-doctor.rollout.")
        if recorded or {"request", "prompt_ids"} <= set(first):
            what = "steps" if recorded else "completions"
            raise ConfigError(
                f"{file}: this trainer's own {what}, no dump of another's: its steps are computed again by "
                "`replay RUN STEP`, where output.record_every recorded them"
            )
        return sorted(found, key=group)

    return _steps(path, "*.jsonl", rows, keyed)


def check_advantages(
    step: TextStep, options: LossConfig, group_size: int, tolerance: float = 1e-4
) -> list[Oddity]:
    """Compares a dump with what `group_advantages` makes of its rewards.

    Args:
        step: Of a dump.
        options: The settings of advantages that the trainer is thought to have.
        group_size: Completions per prompt. A group of a multiple of it is taken for several of the same prompt.
        tolerance: Absolute and relative; dumps come from float32.
    """
    findings, prompts = [], set()
    parts: list[tuple[int, int, list[TextSample]]] = []  # (place of the group, place in it, samples)
    for place, group in enumerate(step.groups):
        if group[0].prompt in prompts:
            findings.append(Oddity("split_prompt", place))
        prompts.add(group[0].prompt)
        size = len(group) if len(group) % group_size else group_size
        if size != group_size:
            findings.append(Oddity("group_size", place, 0, size, group_size))
        parts += [(place, start, group[start : start + size]) for start in range(0, len(group), size)]
    # What no function had anything to say of is left out of its group, and gets no advantage.
    rewards = [[sample.reward for sample in part if sample.reward is not None] for *_, part in parts]
    judged = group_advantages([group for group in rewards if group], **configured(options))
    flat = itertools.chain.from_iterable(judged)
    for (place, start, part), scored in zip(parts, rewards, strict=True):
        if scored and min(scored) == max(scored):
            findings.append(Oddity("zero_variance", place, start))
        for offset, sample in enumerate(part, start):
            expected = 0.0 if sample.reward is None else next(flat)
            found = expected if sample.advantage is None else sample.advantage
            if not math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance):
                findings.append(Oddity("advantage", place, offset, found, expected))
    return findings


def _steps(
    path: Path,
    pattern: str,
    read: Callable[[Path], list[dict[str, Any]]],
    keyed: Callable[[dict[str, Any]], tuple[str, TextSample]],
) -> list[TextStep]:
    """One step a file; none of an empty file. Rows of a group stand side by side."""
    steps = []
    for file in sorted(path.glob(pattern)) if path.is_dir() else [path]:
        try:
            rows = read(file)
            parts = itertools.groupby(map(keyed, rows), key=itemgetter(0))
            groups = [[sample for _, sample in part] for _, part in parts]
            steps += [TextStep(int(rows[0]["step"]), groups)] if rows else []
        except ConfigError:
            raise  # says already what the file is
        except given.UNREADABLE as error:
            raise ConfigError(f"{file}: not a dump that can be read: {_why(error)}") from error
    return sorted(steps, key=attrgetter("step"))


def _why(error: Exception) -> str:
    """A reading's failure in a line, without what was read: some errors bring all of it along."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is no UTF-8; verl writes JSON lines, TRL files that end in .parquet"
    if isinstance(error, KeyError):
        return f"a line has no {error}, which every line of such a dump has"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:_MOST_SAID]}" if said else type(error).__name__


def _number(value: Any) -> float | None:
    """A number as a float, or none; raises TypeError or ValueError for anything else. Trainers write NaN, too."""
    if value is not None and not isinstance(value, (int, float)):
        raise TypeError(f"expected a number, found {value!r:.80}")
    if value is not None and abs(value) > _LARGEST:
        raise ValueError(f"expected a number of float32, found {value!r:.80}")
    return None if value is None else float(value)


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    known = {"step", "prompt", "completion", "advantage", "input", "output", "gts", "score"}
    return {
        name: value for name, value in row.items() if name not in known and isinstance(value, (int, float))
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
