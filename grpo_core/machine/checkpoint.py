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
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from grpo_core.config import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "grpo-doctor.checkpoint.v1"


@dataclass
class State:
    """What is saved. What a mode has in flight between two steps is one of which only that is set.

    Attributes:
        step: Steps done.
        version: Policy version: optimizer updates done.
        round: Rollout batches asked for.
        files: Bytes of each of the run's line files that belong to these steps.
        probe: The publisher's last probe completion, as a dictionary.
        proof: The last weight sync's proof, as a dictionary.
        flight: Rollouts asked for and not yet trained on: (number, completions begun, as dictionaries).
        flight_version: The policy version that samples them.
        tensors: File name -> tensors by name.
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


def save(folder: Path, state: State, *, keep: int) -> None:
    """Writes a checkpoint below `folder`, and removes all but the newest `keep`.

    Args:
        folder: Of the run's checkpoints.
        state: Is saved as JSON, but for its tensors, which are files.
        keep: Checkpoints that stay.

    Raises:
        ConfigError: It can't be written (a full disk, say).
    """
    import safetensors.torch

    form, numbers, _ = random.getstate()
    generators = {"torch": torch.get_rng_state(), "python": torch.tensor([form, *numbers])}
    aside = folder / ".unfinished"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        checksums = {}
        for name, values in {**state.tensors, "generators": generators}.items():
            payload = safetensors.torch.save({key: value.contiguous() for key, value in values.items()})
            (aside / f"{name}.safetensors").write_bytes(payload)
            checksums[name] = hashlib.sha256(payload).hexdigest()
        document = {"schema": SCHEMA, "checksums": checksums, **asdict(replace(state, tensors={}))}
        del document["tensors"]
        (aside / "state.json").write_text(json.dumps(document), encoding="utf-8")
        target = folder / f"step-{state.step:08d}"
        shutil.rmtree(target, ignore_errors=True)  # of a run that had come as far before
        aside.rename(target)
    except OSError as error:
        raise ConfigError(f"{folder}: step {state.step} can't be saved: {error}") from error
    for old in folders(folder)[keep:]:
        shutil.rmtree(old, ignore_errors=True)


def folders(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted(folder.glob("step-*"), reverse=True)
