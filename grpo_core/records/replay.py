"""Replay a recorded step: recompute the loss and gradient of its first update, and compare them bit for bit.

Settings may be overridden. The parameters come from a given path, from a checkpoint of the run, or, before the first
update, from the run's initial model. Nothing is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_core.config import Config, ConfigError
from grpo_core.learn.advantages import with_advantages
from grpo_core.learn.batch import make_batch
from grpo_core.learn.policy import Policy
from grpo_core.learn.update import Updater
from grpo_core.machine.devices import resolve_devices
from grpo_core.machine.process_setup import make_deterministic
from grpo_core.machine.world import World
from grpo_core.records.recording import EXACT, Recorded, as_arguments, digest_like, gradient_digest, read_step
from grpo_core.safe_io import UNREADABLE, read_bytes, resolve_file
from grpo_core.settings import load
from grpo_core.tasks.model import first_line, load_model
from grpo_core.types import Sample

SCHEMA = "grpo-doctor.replay.v1"
# More threads than any machine has; a million of them end the process.
MOST_THREADS = 4096


def replay(
    folder: Path, step: int, policy: Path | None = None, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Recompute loss and gradient of a recorded step's first update, with the trainer's own code.

    Args:
        folder: The folder of the run.
        step: Number of the step, counted from 1.
        policy: The parameters at the start of the step: a transformers checkpoint, or `policy.safetensors` of a
            checkpoint of the run; None: searched in the run's folder, or its initial model for version 0.
        overrides: Other settings, as on the command line. A `--loss.dialect` replaces the recorded `[loss]` settings.
            With it, or with a `--loss.advantage_...` setting, the advantages are computed again from the recorded
            rewards; otherwise the recorded ones are used.

    Returns:
        The document of `replay --json`. `outcome` is `equal` if loss, gradient and the policy's digest (where recorded)
        are the same; `first_difference` is the first of `policy`, `loss` and `gradient` that differs.

    Raises:
        RecordError: The record is missing, torn or altered.
        ConfigError: An override or the policy is not usable, or the step can't be computed on this machine.
    """
    recorded = read_step(folder, step)
    config = _settings(recorded, overrides)
    then = {key: recorded.entry["result"].get(key) for key in ("policy", "loss", "gradient")}
    try:
        make_deterministic(config.train.threads)
        trained = _load_policy(folder, recorded, config, policy)
        updater = Updater(trained, config, World())
        loss = updater.compute_gradients(make_batch(_samples(recorded, config, overrides), trained.device))
        gradient = gradient_digest(trained, str(then["gradient"] or EXACT))
        digest = digest_like(str(then["policy"] or EXACT), trained.engine_tensors())
    except (RuntimeError, AssertionError) as error:  # torch's, for settings that can't be computed here
        raise ConfigError(f"{folder}: step {step}: can't be computed here: {first_line(error)}") from error
    now = {"policy": digest, "loss": loss, "gradient": gradient}
    # Another program may lack the digest of its policy, which only explains a difference.
    different = [key for key in now if now[key] != then[key] and (key != "policy" or then[key] is not None)]
    return {
        "schema": SCHEMA,
        "step": int(recorded.entry["step"]),
        "outcome": "different" if different else "equal",
        "first_difference": different[0] if different else None,
        "overrides": list(overrides),
        **now,
        **{f"recorded_{key}": value for key, value in then.items()},
    }


def _settings(recorded: Recorded, overrides: Sequence[str]) -> Config:
    """Validate a record's settings (they are not trusted), and return them with the overrides."""
    # A dialect sets only keys that are not set, and the record has all of them.
    has_dialect = any(override.startswith("--loss.dialect") for override in overrides)
    settings = recorded.config.as_dict() | ({"loss": {}} if has_dialect else {})
    config = load(None, [*as_arguments(settings), *overrides])
    if config.train.threads > MOST_THREADS:
        raise ConfigError(f"train.threads: {config.train.threads}: expected at most {MOST_THREADS}")
    # peft searches a name that is no folder on the hub, even if the files are here.
    if config.model.path and not os.path.isdir(config.model.path):  # noqa: PTH112 - a NUL in it is no error
        raise ConfigError(f"model.path = {config.model.path!r}: no such folder; give one with --model.path")
    return resolve_devices(config)


def _load_policy(folder: Path, recorded: Recorded, config: Config, source: Path | None) -> Policy:
    """Build the policy with the parameters that the step started from."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    policy = Policy(config.model.path or str(folder / "model"), config, World())
    size = policy.causal.get_input_embeddings().num_embeddings
    ids = [*recorded.numbers["prompt_ids"], *recorded.numbers["completion_ids"]]
    if invalid := [token for token in ids if type(token) is not int or not 0 <= token < size]:
        raise ConfigError(f"token id {invalid[0]} was recorded, and the model has {size}: it is another one")
    step, version = recorded.entry["step"], recorded.entry["policy_version"]
    source = source or _find_parameters(folder, version)
    if source is None and version:
        raise ConfigError(
            f"{folder}: step {step} started from policy version {version}, and no checkpoint kept has it; "
            "give its parameters with --policy, or run with a greater checkpoint.keep"
        )
    try:
        if source is not None and source.is_dir():
            model = load_model(source)
            policy.load_state({f"causal.{name}": value for name, value in model.named_parameters()})
        elif source is not None:
            policy.load_state(load_file(resolve_file(source)))
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        wrong = " ".join(str(error).split())
        raise ConfigError(f"{source}: expected this model's parameters by name: {wrong}") from error
    return policy


def _find_parameters(folder: Path, version: int) -> Path | None:
    """Return the parameters of a policy version, if one of the run's checkpoints has them."""
    for path in sorted(folder.glob("checkpoints/step-*/state.json")):
        try:
            if json.loads(read_bytes(path, inside=folder))["version"] == version:
                return resolve_file(path.parent / "policy.safetensors", inside=folder)
        except UNREADABLE:
            continue
    return None


def _samples(recorded: Recorded, config: Config, overrides: Sequence[str]) -> list[Sample]:
    """Return the samples with the recorded advantages, or with new ones if an override may change their formula."""
    if not any(override.startswith(("--loss.advantage_", "--loss.dialect")) for override in overrides):
        return recorded.samples
    groups: dict[int, list[Sample]] = {}
    for prompt, sample in zip(recorded.numbers["prompt_index"], recorded.samples, strict=True):
        groups.setdefault(prompt, []).append(sample)
    return with_advantages(list(groups.values()), config.loss)
