"""Checkpoints: everything a killed run needs to go on with the very numbers it would have had.

A checkpoint is a folder, written under another name and renamed when whole; its `state.json` holds the checksums
of the files beside it, and one that does not match is not loaded. No generator's state is needed for sampling:
each request carries a seed of its own. The states of Python's and torch's generators are kept for reward functions.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from grpo_core.config import ConfigError
from grpo_core.types import Completion

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA = "grpo-doctor.checkpoint.v1"


@dataclass
class UnderWay:
    """What a mode has in flight between two steps.

    Attributes:
        flight: Rollouts asked for and not yet trained on: (number, completions begun, as dictionaries).
        version: The policy version that samples them.
        tensors: File name -> tensors by name: what it takes to go on.
    """

    flight: list[tuple[int, list[dict[str, Any]]]] = field(default_factory=list)
    version: int = -1
    tensors: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)


@dataclass
class State:
    """What is saved.

    Attributes:
        step: Steps done.
        version: Policy version: optimizer updates done.
        round: Rollout batches asked for.
        files: Bytes of each of the run's line files that belong to these steps.
        probe: The publisher's last probe completion, as a dictionary.
        proof: The last weight sync's proof, as a dictionary.
        flight: See `UnderWay`.
        flight_version: See `UnderWay`.
        tensors: File name -> tensors by name; of a checkpoint that was read.
    """

    step: int = 0
    version: int = 0
    round: int = 0
    files: dict[str, int] = field(default_factory=dict)
    probe: dict[str, Any] | None = None
    proof: dict[str, Any] | None = None
    flight: list[tuple[int, list[dict[str, Any]]]] = field(default_factory=list)
    flight_version: int = -1
    tensors: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)


def completion_from(entry: Mapping[str, Any]) -> Completion:
    """A completion from its dictionary."""
    ids, logprobs, versions = (tuple(entry[name]) for name in ("ids", "logprobs", "versions"))
    return Completion(entry["request_id"], ids, logprobs, versions, entry["finish_reason"])


def save(folder: Path, state: State, tensors: Mapping[str, Mapping[str, torch.Tensor]], *, keep: int) -> None:
    """Writes a checkpoint below `folder`, and removes all but the newest `keep`.

    Args:
        folder: Of the run's checkpoints.
        state: Is saved as JSON, but for its own tensors.
        tensors: File name -> tensors by name.
        keep: Checkpoints that stay.

    Raises:
        ConfigError: It can't be written (a full disk, say).
    """
    import safetensors.torch

    generators = {"torch": torch.get_rng_state(), "python": _python_generator()}
    aside = folder / ".unfinished"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        checksums = {}
        for name, values in {**tensors, "generators": generators}.items():
            payload = safetensors.torch.save({key: value.contiguous() for key, value in values.items()})
            (aside / f"{name}.safetensors").write_bytes(payload)
            checksums[name] = hashlib.sha256(payload).hexdigest()
        document = {"schema": SCHEMA, "checksums": checksums, **asdict(state)}
        del document["tensors"]
        (aside / "state.json").write_text(json.dumps(document), encoding="utf-8")
        target = folder / f"step-{state.step:08d}"
        shutil.rmtree(target, ignore_errors=True)  # of a run that had come as far before
        aside.rename(target)
    except OSError as error:
        raise ConfigError(f"{folder}: step {state.step} can't be saved: {error}") from error
    for old in _folders(folder)[keep:]:
        shutil.rmtree(old, ignore_errors=True)


def load(folder: Path) -> State | None:
    """The newest checkpoint that is whole, and sets the generators; None: there is none."""
    for path in _folders(folder):
        try:
            state = _read(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"grpo_core: {path} is damaged ({error}) and is passed over", file=sys.stderr)
            continue
        generators = state.tensors.pop("generators")
        torch.set_rng_state(generators["torch"])
        version, *numbers = generators["python"].tolist()
        random.setstate((version, tuple(numbers), None))
        return state
    return None


def clear(folder: Path) -> None:
    """Removes the checkpoints of an earlier run of this name."""
    shutil.rmtree(folder, ignore_errors=True)


def _folders(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted(folder.glob("step-*"), reverse=True)


def _read(path: Path) -> State:
    import safetensors.torch

    document = json.loads((path / "state.json").read_text(encoding="utf-8"))
    if document.pop("schema") != SCHEMA:
        raise ValueError(f"expected {SCHEMA}")
    tensors = {}
    for name, expected in document.pop("checksums").items():
        payload = (path / f"{name}.safetensors").read_bytes()
        if hashlib.sha256(payload).hexdigest() != expected:
            raise ValueError(f"{name}.safetensors has another checksum than it was written with")
        tensors[name] = safetensors.torch.load(payload)
    return State(**document, tensors=tensors)


def _python_generator() -> torch.Tensor:
    version, numbers, _ = random.getstate()
    return torch.tensor([version, *numbers])
