"""Record steps in files that other programs can read, and read them back: samples, settings, loss and digests.

`rollouts.jsonl` has a line for each recorded step, with the name and checksum of a safetensors file for the numbers; of
several lines of one step the last one counts. The line also has digests of the policy and of the first update's
gradient, but not the parameters themselves. docs/rollout-format.md describes both files. `Recorder` writes both,
`read_step` reads a step. `as_arguments` turns recorded settings into command-line arguments.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpo_core.config import Config, RecordError
from grpo_core.learn.policy import Policy
from grpo_core.machine.process_setup import versions
from grpo_core.rollout.weights.digest import digest_of_same_kind, spot_digest
from grpo_core.run_files import is_due
from grpo_core.safe_io import UNREADABLE, open_output, read_bytes, write_atomically
from grpo_core.settings import load
from grpo_core.types import Completion, Prompt, Request, Sample

SCHEMA = "grpo-doctor.rollout.v1"


@dataclass(frozen=True)
class Recorded:
    """A recorded step.

    Attributes:
        entry: The step's line of rollouts.jsonl.
        numbers: The content of the step's safetensors file, as lists.
        samples: The samples, in the order of the batch.
        config: The settings of the run; missing ones have their default.
    """

    entry: dict[str, Any]
    numbers: dict[str, list[Any]]
    samples: list[Sample]
    config: Config


class Recorder:
    """Writes steps into a folder, each completely or not at all.

    All ranks observe a step's first update; rank 0 writes it.
    """

    def __init__(self, folder: Path, config: Config, *, is_first: bool = True) -> None:
        """Append to the records in the folder; a last line that a kill cut off is removed."""
        self._folder, self._config, self._is_first = folder, config, is_first
        self._run = {"settings": config.as_dict(), "versions": versions()}
        self._result = dict[str, Any]()
        path = folder / "rollouts.jsonl"
        if is_first and path.exists():
            write_atomically(path, b"".join(path.read_bytes().rpartition(b"\n")[:2]))

    def begin_step(self, step: int, policy: Policy) -> Callable[[Policy, float], None] | None:
        """Return the observer for the step's first update; None if the step is not recorded."""
        self._result = {}
        if not is_due(step, self._config.output.record_every, self._config):
            return None
        before = digest_like(EXACT, policy.engine_tensors())

        def on_gradients(policy: Policy, loss: float) -> None:
            self._result = {"loss": loss, "gradient": gradient_digest(policy), "policy": before}

        return on_gradients

    def end_step(
        self, step: int, version: int, samples: Sequence[Sample], requests: Mapping[str, Request]
    ) -> None:
        """Write the step if its first update was observed; `requests` maps ids to requests."""
        if self._is_first and self._result:
            self.write(step, version, samples, list(requests.values()), self._result)

    def write(
        self,
        step: int,
        version: int,
        samples: Sequence[Sample],
        requests: Sequence[Request],
        result: Mapping[str, Any],
    ) -> None:
        """Record a step. A later line of the same step, written after a restart, replaces the earlier one.

        Args:
            step: Number of the step, counted from 1.
            version: Policy version at the start of the step.
            samples: All samples of the step; those of a group are adjacent.
            requests: The requests of the samples, and perhaps others; they are paired by id.
            result: The step's `loss`, `gradient` (see `gradient_digest`) and any other JSON.
        """
        from safetensors.torch import save

        groups = [list(group) for _, group in itertools.groupby(samples, key=lambda sample: sample.prompt.id)]
        data = save({name: _tensor(values) for name, values in _numbers(groups, requests).items()})
        checksum = hashlib.sha256(data).hexdigest()
        # The file's name has its checksum, so an earlier record of this step stays readable until the line is written.
        name = f"rollouts/step-{step:06d}-{checksum[:8]}.safetensors"
        (self._folder / "rollouts").mkdir(parents=True, exist_ok=True)
        write_atomically(self._folder / name, data)
        prompts = [group[0].prompt for group in groups]
        entry = {
            "schema": SCHEMA,
            "step": step,
            "policy_version": version,
            "file": name,
            "sha256": checksum,
            "prompts": [{"id": p.id, "text": p.text, "columns": _json_columns(p.columns)} for p in prompts],
            "requests": [sample.completion.request_id for sample in samples],
            "finish_reasons": [sample.completion.finish_reason for sample in samples],
            "texts": [sample.text for sample in samples],
            "scores": [dict(sample.scores) for sample in samples],
            **self._run,
            "result": dict(result),
        }
        with open_output(self._folder / "rollouts.jsonl", keep=True) as file:
            file.write(json.dumps(entry, allow_nan=False).encode() + b"\n")


def read_step(folder: Path, step: int) -> Recorded:
    """Read a recorded step and verify its checksum.

    Raises:
        RecordError: The step is not recorded, or its numbers have another checksum or are not in the format.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as load_numbers

    path = folder / "rollouts.jsonl"
    try:
        entry = _entry(path, step)
        data = _read_verified(folder, str(entry["file"]), str(entry["sha256"]))
        return _build_recorded(entry, {name: values.tolist() for name, values in load_numbers(data).items()})
    except (*UNREADABLE, SafetensorError) as error:
        wrong = f"{type(error).__name__}: {error}"
        raise RecordError(f"{path}: step {step}: not a whole {SCHEMA}: {wrong}") from error


def as_arguments(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Write settings, section -> key -> value, as arguments of the command line.

    >>> as_arguments({"loss": {"clip_low": 0.2}, "reward": {"weights": [1.0, 0.5]}})
    ['--loss.clip_low=0.2', '--reward.weights=1.0,0.5']
    """
    return [
        f"--{section}.{key}={','.join(map(str, value)) if isinstance(value, (list, tuple)) else value}"
        for section, table in settings.items()
        for key, value in table.items()
    ]


def _entry(path: Path, step: int) -> dict[str, Any]:
    """Return the last complete line of a step in rollouts.jsonl."""
    lines = read_bytes(path).split(b"\n")[:-1]  # after the last line end is nothing, or a torn line
    entries = {entry["step"]: entry for entry in map(json.loads, lines) if entry["schema"] == SCHEMA}
    if step not in entries:
        raise RecordError(f"{path}: no {SCHEMA} of step {step}; there is: {sorted(entries)}")
    return dict(entries[step])


def _read_verified(folder: Path, name: str, checksum: str) -> bytes:
    """Read a step's safetensors file; raises RecordError if its SHA-256 is not the recorded one."""
    path = folder / name
    data = read_bytes(path, inside=folder / "rollouts")
    actual = hashlib.sha256(data).hexdigest()
    if actual != checksum:
        raise RecordError(
            f"{path}: torn or altered: its SHA-256 begins with {actual[:12]}, where {checksum[:12]} was recorded; "
            "copy the file again, or record the step again"
        )
    return data


def _numbers(groups: list[list[Sample]], requests: Sequence[Request]) -> dict[str, list[Any]]:
    """Return the content of a step's safetensors file, as lists by name."""
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


def _build_recorded(entry: dict[str, Any], numbers: dict[str, list[Any]]) -> Recorded:
    """Build the samples of a step from its line and its numbers."""
    prompt_ids = _split(numbers["prompt_ids"], numbers["prompt_lengths"])
    prompts = [Prompt(ids=ids, **row) for row, ids in zip(entry["prompts"], prompt_ids, strict=True)]
    streams = [
        _split(numbers[name], numbers["completion_lengths"])
        for name in ("completion_ids", "behaviour_logprobs", "policy_versions")
    ]
    answers = zip(entry["requests"], *streams, entry["finish_reasons"], strict=True)
    completions = itertools.starmap(Completion, answers)
    prompt_of_each = [prompts[place] for place in numbers["prompt_index"]]
    scores = (numbers["rewards"], numbers["advantages"], entry["scores"], numbers["trained"])
    rows = zip(prompt_of_each, completions, entry["texts"], *scores, strict=True)
    samples = list(itertools.starmap(Sample, rows))
    return Recorded(entry, numbers, samples, load(None, as_arguments(entry["settings"])))


def _json_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that are valid JSON: dates, images or NaN in a data set don't end a run."""
    valid = {}
    for key, value in columns.items():
        with contextlib.suppress(TypeError, ValueError):
            valid[key] = json.loads(json.dumps(value, allow_nan=False))
    return valid


def _split(values: list[Any], lengths: list[int]) -> list[tuple[Any, ...]]:
    """Split values into tuples of these lengths."""
    if sum(lengths) != len(values):
        raise ValueError(f"{len(values)} numbers, but the lengths add up to {sum(lengths)}")
    rest = iter(values)
    return [tuple(itertools.islice(rest, length)) for length in lengths]


def _flat(parts: Iterable[Iterable[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(parts))


def _tensor(values: list[Any]) -> torch.Tensor:
    """Return a tensor: of floats in float32 if that is exact, else in float64; of integers and booleans as they are."""
    if not isinstance(values[0], float):
        return torch.tensor(values)
    exact = torch.tensor(values, dtype=torch.float64)
    return exact.float() if torch.equal(exact.float().double(), exact) else exact


EXACT = "spot1-"  # prefix of a digest over every byte, which costs a third of SHA-256


def digest_like(recorded: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Compute a digest of tensors by the method of a recorded digest, which its prefix names.

    >>> digest_like(EXACT, [("a", torch.ones(1))])[:9]
    'spot1-v0-'
    """
    exact = recorded.startswith(EXACT)
    return spot_digest(tensors, 0, every=1) if exact else digest_of_same_kind(recorded, tensors, 0)


def gradient_digest(policy: Policy, like: str = EXACT) -> str:
    """Compute a digest of a policy's gradients by the method of the digest `like`."""
    gradients = ((name, value.grad) for name, value in policy.trained_parameters())
    return digest_like(like, ((name, gradient) for name, gradient in gradients if gradient is not None))
