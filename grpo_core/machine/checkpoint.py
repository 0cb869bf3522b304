"""Save and load checkpoints: the state that a killed run needs to continue with the same numbers.

`save` writes a checkpoint, and `load` reads the newest undamaged one. A checkpoint is a folder, written under another
name and renamed when complete. Its `state.json` has the checksums of its tensor files; a checkpoint whose files do not
match is skipped, with a message. No state of random generators is saved: each request has its own seed, and a reward
function that uses random numbers must seed them itself. `check_resumable` refuses to resume a run with other settings;
those in `_CHANGEABLE` may differ.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from grpo_core.config import Config, ConfigError
from grpo_core.console_text import escape
from grpo_core.safe_io import read_bytes
from grpo_core.types import Completion

SCHEMA = "grpo-doctor.checkpoint.v1"


@dataclass
class State:
    """The state of a run between two steps. A rollout mode fills `flight` only if it has unfinished rollouts.

    Attributes:
        step: Number of finished steps.
        version: Policy version: the number of finished optimizer updates.
        round: Number of rollout batches requested.
        files: For each of the run's JSON lines files, the number of bytes that belong to these steps.
        probe: The publisher's last probe completion, as a dictionary.
        proof: The last weight sync's proof, as a dictionary.
        flight: Rollouts requested and not yet trained on: (number, empty list).
        flight_version: The policy version that samples these rollouts.
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
    """Write a checkpoint below `folder`, and remove all but the newest `keep`.

    Args:
        folder: Folder of the run's checkpoints.
        state: The state, written as JSON, with its tensors in separate files.
        keep: Number of checkpoints to keep.

    Raises:
        ConfigError: The checkpoint can't be written (a full disk, for example).
    """
    import safetensors.torch

    unfinished = folder / ".unfinished"
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        checksums = {}
        for name, values in state.tensors.items():
            payload = safetensors.torch.save({key: value.contiguous() for key, value in values.items()})
            (unfinished / f"{name}.safetensors").write_bytes(payload)
            checksums[name] = hashlib.sha256(payload).hexdigest()
        document = {"schema": SCHEMA, "checksums": checksums, **asdict(replace(state, tensors={}))}
        del document["tensors"]
        (unfinished / "state.json").write_text(json.dumps(document), encoding="utf-8")
        target = folder / f"step-{state.step:08d}"
        shutil.rmtree(target, ignore_errors=True)  # an earlier run saved this step, too
        unfinished.rename(target)
    except OSError as error:
        raise ConfigError(f"{folder}: step {state.step} can't be saved: {error}") from error
    for old in _newest_first(folder)[keep:]:
        shutil.rmtree(old, ignore_errors=True)


def _newest_first(folder: Path) -> list[Path]:
    """Return the folders of the checkpoints, the newest first."""
    return sorted(folder.glob("step-*"), reverse=True)


# A resumed run may change these settings: the finished steps stay valid. With a schedule, `train.steps` and
# `train.epochs` change the learning rate of the later steps.
_CHANGEABLE = (
    "output.", "checkpoint.", "eval.", "train.steps", "train.epochs", "rollout.timeout_s",
    "rollout.host", "rollout.port",
)  # fmt: skip


def check_resumable(path: Path, config: Config) -> None:
    """Refuse to resume a run that does not exist, or whose settings (saved in `path`) were different.

    The settings in `_CHANGEABLE` may differ. A run without the file is accepted.

    Raises:
        ConfigError: No run is named, the run does not exist or had other settings, or the file is not JSON.
    """
    name = config.output.name
    if not name:
        raise ConfigError("output.name = '' (default): --resume needs the name of the run that is to go on")
    if not Path(config.output.dir, name).is_dir():
        missing = f"output.name = {name!r}: no such run in {config.output.dir}"
        raise ConfigError(f"{missing} to go on with; without --resume it is started")
    if not path.exists():
        return
    try:
        before = _flat(json.loads(read_bytes(path)))
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: not JSON ({error}): the run of this name can't be resumed") from error
    if changes := _changes(before, _as_saved(config), _as_saved(Config())):
        where = " (its config.json has them all)" if len(changes) > 1 else ""
        raise ConfigError(
            f"{'; '.join(changes)}: the run in {path.parent} is resumed as it was begun. Give --resume the settings it "
            f"had{where}, or another output.name"
        )


def _changes(before: dict[str, Any], now: dict[str, Any], defaults: dict[str, Any]) -> list[str]:
    """Describe the changed settings, except those in `_CHANGEABLE`."""
    changes = []
    for key, value in now.items():
        if not key.startswith(_CHANGEABLE) and before.get(key, value) != value:
            default = " (its default)" if value == defaults[key] else ""
            changes.append(f"{key} = {value!r}{default}, begun with {before[key]!r}")
    return changes


def _as_saved(config: Config) -> dict[str, Any]:
    """Return the settings, by `section.key`, in the form in which config.json has them."""
    return _flat(json.loads(json.dumps(config.as_dict())))  # tuples are lists in the file


def _flat(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, table in settings.items() for key, value in table.items()}


def load(folder: Path) -> State | None:
    """Load the newest undamaged checkpoint; None if there is none. Newer, damaged ones are reported on stderr."""
    for path in _newest_first(folder):
        try:
            return _load_folder(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(escape(f"grpo_core: {path} is damaged ({error}) and is passed over"), file=sys.stderr)
    return None


def _load_folder(path: Path) -> State:
    """Load one checkpoint; raises an error if a file is missing, damaged or of another schema."""
    import safetensors.torch

    document = json.loads(read_bytes(path / "state.json"))
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
    """Build a completion from its dictionary."""
    streams = {name: tuple(entry[name]) for name in ("ids", "logprobs", "versions")}
    return Completion(**{**entry, **streams})
