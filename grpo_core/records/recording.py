"""Rollouts as files that outlive the run: everything a step's loss was computed from, for any program to read.

`rollouts.jsonl` has one line a step, which names a safetensors file with the numbers and that file's checksum.
docs/rollout-format.md describes both.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from grpo_core.config import RecordError
from grpo_core.records import given
from grpo_core.settings import load
from grpo_core.types import Completion, Prompt, Sample
from grpo_core.versions import versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from grpo_core.config import Config
    from grpo_core.types import Request

SCHEMA = "grpo-doctor.rollout.v1"


@dataclass(frozen=True)
class Recorded:
    """One step as it was recorded.

    Attributes:
        entry: Its line of rollouts.jsonl.
        numbers: What its safetensors file holds, as lists.
        samples: In the order of the batch.
        config: The settings; those that weren't recorded are defaults.
    """

    entry: dict[str, Any]
    numbers: dict[str, list[Any]]
    samples: list[Sample]
    config: Config


class Recorder:
    """Writes steps into a folder: whole, or not at all."""

    def __init__(self, folder: Path, config: Config) -> None:
        """Goes on behind what is recorded there; a last line that a kill cut off is removed."""
        (folder / "rollouts").mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._run = {"settings": config.as_dict(), "versions": versions()}
        with (folder / "rollouts.jsonl").open("ab+") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)

    def write(
        self,
        step: int,
        version: int,
        samples: Sequence[Sample],
        requests: Sequence[Request],
        result: Mapping[str, Any],
    ) -> None:
        """Records a step. A later line of the same step, written after a restart, replaces the earlier one.

        Args:
            step: Counted from 1.
            version: The policy version the step started from.
            samples: All of the step, those of a group side by side.
            requests: What was asked for, paired with the samples by id.
            result: What the step gave: `loss`, `gradient` (see `gradient_digest`) and whatever else is JSON;
                `proximal_logprobs`, one list a sample, is kept with the numbers.
        """
        from safetensors.torch import save

        groups = [list(group) for _, group in itertools.groupby(samples, key=lambda sample: sample.prompt.id)]
        numbers = _numbers(groups, requests)
        if "proximal_logprobs" in result:
            numbers["proximal_logprobs"] = _flat(result["proximal_logprobs"])
        data = save({name: _tensor(values) for name, values in numbers.items()})
        checksum = hashlib.sha256(data).hexdigest()
        # Named by content: until the line below is written, an earlier record of this step stays readable.
        name = f"rollouts/step-{step:06d}-{checksum[:8]}.safetensors"
        aside = self._folder / "rollouts" / "unfinished"
        aside.write_bytes(data)
        aside.replace(self._folder / name)
        prompts = [group[0].prompt for group in groups]
        entry = {
            "schema": SCHEMA,
            "step": step,
            "policy_version": version,
            "file": name,
            "sha256": checksum,
            "prompts": [{"id": p.id, "text": p.text, "columns": _json(p.columns)} for p in prompts],
            "requests": [sample.completion.request_id for sample in samples],
            "finish_reasons": [sample.completion.finish_reason for sample in samples],
            "texts": [sample.text for sample in samples],
            "scores": [dict(sample.scores) for sample in samples],
            **self._run,
            "result": {key: value for key, value in result.items() if key != "proximal_logprobs"},
        }
        with (self._folder / "rollouts.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, allow_nan=False) + "\n")


def read_step(folder: Path, step: int) -> Recorded:
    """A recorded step, complete and unaltered.

    Raises:
        RecordError: It isn't there, its numbers don't have the recorded checksum, or aren't what they should be.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as load_numbers

    path = folder / "rollouts.jsonl"
    try:
        entry = _entry(path, step)
        data = _checked(folder, str(entry["file"]), str(entry["sha256"]))
        return _recorded(entry, {name: values.tolist() for name, values in load_numbers(data).items()})
    except (*given.UNREADABLE, SafetensorError) as error:
        wrong = f"{type(error).__name__}: {error}"
        raise RecordError(f"{path}: step {step}: not a whole {SCHEMA}: {wrong}") from error


def as_arguments(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Settings, section -> key -> value, as the command line has them.

    >>> as_arguments({"loss": {"clip_low": 0.2}, "reward": {"weights": [1.0, 0.5]}})
    ['--loss.clip_low=0.2', '--reward.weights=1.0,0.5']
    """

    def text(value: Any) -> str:
        return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

    return [f"--{name}.{key}={text(value)}" for name, keys in settings.items() for key, value in keys.items()]


def _entry(path: Path, step: int) -> dict[str, Any]:
    lines = given.read(path).split(b"\n")[:-1]  # behind the last line end is nothing, or a torn line
    entries = {entry["step"]: entry for entry in map(json.loads, lines) if entry["schema"] == SCHEMA}
    if step not in entries:
        raise RecordError(f"{path}: no {SCHEMA} of step {step}; there is: {sorted(entries)}")
    return dict(entries[step])


def _checked(folder: Path, name: str, checksum: str) -> bytes:
    path = folder / name
    data = given.read(path, inside=folder / "rollouts")
    found = hashlib.sha256(data).hexdigest()
    if found != checksum:
        raise RecordError(
            f"{path}: torn or altered: its SHA-256 begins with {found[:12]}, where {checksum[:12]} was recorded; "
            "copy the file again, or record the step again"
        )
    return data


def _numbers(groups: list[list[Sample]], requests: Sequence[Request]) -> dict[str, list[Any]]:
    samples = _flat(groups)
    answers = [sample.completion for sample in samples]
    prompt_ids = [group[0].prompt.ids for group in groups]
    seeds = {request.id: request.seed for request in requests}
    return {
        "prompt_ids": _flat(prompt_ids),
        "prompt_lengths": [len(ids) for ids in prompt_ids],
        "prompt_index": [place for place, group in enumerate(groups) for _ in group],
        "completion_ids": _flat(answer.ids for answer in answers),
        "completion_lengths": [len(answer.ids) for answer in answers],
        "behaviour_logprobs": _flat(answer.logprobs for answer in answers),
        "policy_versions": _flat(answer.versions for answer in answers),
        "seeds": [seeds[answer.request_id] for answer in answers],
        "rewards": [float(sample.reward) for sample in samples],
        "advantages": [float(sample.advantage) for sample in samples],
        "trained": [sample.trained for sample in samples],
    }


def _recorded(entry: dict[str, Any], numbers: dict[str, list[Any]]) -> Recorded:
    prompt_ids = _split(numbers["prompt_ids"], numbers["prompt_lengths"])
    prompts = [Prompt(ids=ids, **row) for row, ids in zip(entry["prompts"], prompt_ids, strict=True)]
    asked = [prompts[place] for place in numbers["prompt_index"]]
    streams = [
        _split(numbers[name], numbers["completion_lengths"])
        for name in ("completion_ids", "behaviour_logprobs", "policy_versions")
    ]
    answers = zip(entry["requests"], *streams, entry["finish_reasons"], strict=True)
    completions = itertools.starmap(Completion, answers)
    judged = (numbers["rewards"], numbers["advantages"], entry["scores"], numbers["trained"])
    rows = zip(asked, completions, entry["texts"], *judged, strict=True)
    samples = list(itertools.starmap(Sample, rows))
    return Recorded(entry, numbers, samples, load(None, as_arguments(entry["settings"])))


def _json(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that JSON can hold: dates, images or NaN of a data set don't end a run."""
    kept = {}
    for key, value in columns.items():
        with contextlib.suppress(TypeError, ValueError):
            kept[key] = json.loads(json.dumps(value, allow_nan=False))
    return kept


def _split(values: list[Any], lengths: list[int]) -> list[tuple[Any, ...]]:
    if sum(lengths) != len(values):
        raise ValueError(f"{len(values)} numbers, but the lengths add up to {sum(lengths)}")
    rest = iter(values)
    return [tuple(itertools.islice(rest, length)) for length in lengths]


def _flat(parts: Iterable[Iterable[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(parts))


def _tensor(values: list[Any]) -> torch.Tensor:
    """Integers and booleans as they are; floats in float32 where that loses nothing, else in float64."""
    if not isinstance(values[0], float):
        return torch.tensor(values)
    exact = torch.tensor(values, dtype=torch.float64)
    return exact.float() if torch.equal(exact.float().double(), exact) else exact
