"""Checkpoints: everything a killed run needs to go on with the very numbers it would have had.

A checkpoint is a folder, written under another name and renamed when whole; its `state.json` holds the checksums
of the files beside it, and one that does not match is not loaded. No generator's state is needed for sampling:
each request carries a seed of its own. The states of Python's and torch's generators are kept for reward functions.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from grpo_core.config import ConfigError
from grpo_core.types import Completion

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grpo_core.config import Config

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


# A resumed run may differ in these: none of them moves a number of the training.
_FREE = (
    *(
        "output.",
        "checkpoint.",
        "eval.",
        "train.steps",
        "train.stall_s",
        "train.stall_look",
        "reward.threads",
    ),
    *("rollout.timeout_s", "rollout.host", "rollout.port", "rollout.reconnect_s", "rollout.token_file"),
)


def refuse_unfit(path: Path, config: Config) -> None:
    """Holds who resumes to a run that is there, and to the settings it began with, which are in this file.

    Raises:
        ConfigError: No run is named, there is none of that name, or it would be another; or the file can't be read.
    """
    name = config.output.name
    if not name:
        raise ConfigError("output.name = '' (default): --resume needs the name of the run that is to go on")
    if not Path(config.output.dir, name).is_dir():
        what = f"output.name = {name!r}: no such run in {config.output.dir}"
        raise ConfigError(f"{what} to go on with; without --resume it is started")
    if path.exists():
        _refuse_changes(path, config)


def _refuse_changes(path: Path, config: Config) -> None:
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        held, usual = _flat(before), _plain(type(config)())
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: not JSON ({error}): the run of this name can't be resumed") from error
    asked, changed = _plain(config), []
    for key, value in asked.items():
        if held.get(key, value) != value and not key.startswith(_FREE):
            default = " (its default)" if value == usual[key] else ""
            changed.append(f"{key} = {value!r}{default}, begun with {held[key]!r}")
    changed += [f"{key} is not set, begun with {held[key]!r}" for key in held if key not in asked]
    if changed:
        one = len(changed) == 1
        raise ConfigError(
            f"{'; '.join(changed)}: the run in {path.parent} is resumed as it was begun. Give --resume the settings it "
            f"had{'' if one else ' (its config.json has them all)'}, or another output.name"
        )


def _plain(config: Config) -> dict[str, Any]:
    return _flat(json.loads(json.dumps(config.as_dict())))  # tuples are lists in the file


def _flat(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, table in settings.items() for key, value in table.items()}


def cut_back(path: Path, keep_bytes: int) -> None:
    """Removes from a run's file what was written behind the checkpoint.

    Raises:
        ConfigError: The file is shorter than it was then.
    """
    size = path.stat().st_size if path.exists() else 0
    if size < keep_bytes:
        raise ConfigError(
            f"{path}: {size} bytes, but the checkpoint was saved when it had {keep_bytes}: it was replaced or cut "
            "off since; put it back, or start another run under a new output.name"
        )
    os.truncate(path, keep_bytes)


def load(folder: Path) -> State | None:
    """The newest checkpoint that is whole, and sets the generators; None: there is none."""
    for path in folders(folder):
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


def completion_from(entry: Mapping[str, Any]) -> Completion:
    """A completion from its dictionary."""
    ids, logprobs, versions = (tuple(entry[name]) for name in ("ids", "logprobs", "versions"))
    return Completion(entry["request_id"], ids, logprobs, versions, entry["finish_reason"])
