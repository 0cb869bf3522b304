"""Replay of a recorded step: with its own settings to the last bit, or with others to compare."""

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
from grpo_core.machine.process import make_deterministic
from grpo_core.machine.resources import resolve
from grpo_core.machine.world import World
from grpo_core.records.recording import EXACT, Recorded, as_arguments, digest_like, gradient_digest, read_step
from grpo_core.safe_io import read_bytes, resolve_file
from grpo_core.settings import load
from grpo_core.tasks.model import first_line, load_model
from grpo_core.types import Group, Sample

SCHEMA = "grpo-doctor.replay.v1"
# More than any machine has; a million of them end the process.
MOST_THREADS = 4096


def replay(
    folder: Path, step: int, policy: Path | None = None, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Compute loss and gradient of a recorded step's first update again, by the trainer's own code.

    Args:
        folder: The run.
        step: Counted from 1.
        policy: The parameters at the start of the step: a transformers checkpoint, or `policy.safetensors` of a
            checkpoint of the run; None: searched in the run's folder.
        overrides: Other settings, as `--section.key=VALUE`; advantages follow from the recorded rewards.

    Returns:
        The document of `replay --json`. `outcome` is `equal` only if loss and gradient have the recorded bits;
        `first_difference` says which of `policy`, `loss` and `gradient` differs first.

    Raises:
        RecordError: The record is missing, torn or altered.
        ConfigError: An override or the policy is not usable.
    """
    recorded = read_step(folder, step)
    try:
        return _compare(folder, recorded, policy, overrides)
    except (RuntimeError, AssertionError) as error:  # torch's, for settings that can't be computed here
        raise ConfigError(f"{folder}: step {step}: can't be computed here: {first_line(error)}") from error


def _compare(
    folder: Path, recorded: Recorded, source: Path | None, overrides: Sequence[str]
) -> dict[str, Any]:
    config = load(None, [*as_arguments(recorded.config.as_dict()), *overrides])
    if config.train.threads > MOST_THREADS:  # a record's settings are untrusted
        raise ConfigError(f"train.threads: {config.train.threads}: expected at most {MOST_THREADS}")
    # peft searches a name that is no folder on the hub, even if the files are here.
    if config.model.path and not os.path.isdir(config.model.path):  # noqa: PTH112 - a NUL in it is no error
        raise ConfigError(f"model.path = {config.model.path!r}: no such folder; give one with --model.path")
    config = resolve(config)
    make_deterministic(config.train.threads)
    policy = _load_policy(folder, recorded, config, source)
    updater = Updater(policy, config, World())
    _check_vocabulary(recorded, policy)
    # The recorded advantages are used, unless an override changes them.
    recompute = any(override.startswith("--loss.advantage_") for override in overrides)
    samples = _with_new_advantages(recorded, config) if recompute else recorded.samples
    batch = make_batch(samples, policy.device)
    then = {key: recorded.entry["result"].get(key) for key in ("policy", "loss", "gradient")}
    loss = updater.gradients(batch)
    gradient = gradient_digest(policy, str(then["gradient"] or EXACT))
    digest = digest_like(str(then["policy"] or EXACT), policy.tensors())
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


def _load_policy(folder: Path, recorded: Recorded, config: Config, source: Path | None) -> Policy:
    """Build the policy with the parameters that the step started from."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    policy = Policy(config.model.path or str(folder / "model"), config, World())
    step, version = recorded.entry["step"], recorded.entry["policy_version"]
    source = source or _find_parameters(folder, version)
    if source is None:
        if version:
            raise ConfigError(
                f"{folder}: step {step} started from policy version {version}, and no checkpoint kept has it; "
                "give its parameters with --policy, or run with a greater checkpoint.keep"
            )
        return policy
    try:
        if source.is_dir():
            state = {f"causal.{name}": value for name, value in load_model(source).named_parameters()}
        else:
            state = load_file(resolve_file(source))
        policy.load_state(state)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        wrong = " ".join(str(error).split())
        raise ConfigError(f"{source}: expected this model's parameters by name: {wrong}") from error
    return policy


def _find_parameters(folder: Path, version: int) -> Path | None:
    """Return the parameters of a policy version, if one of the run's checkpoints has them."""
    for path in sorted(folder.glob("checkpoints/step-*/state.json")):
        try:
            state = json.loads(read_bytes(path, inside=folder))
        except (OSError, ValueError):
            continue
        if isinstance(state, dict) and state.get("version") == version:
            try:
                return resolve_file(path.parent / "policy.safetensors", inside=folder)
            except (OSError, ValueError) as error:
                raise ConfigError(f"the parameters kept of version {version}: {error}") from None
    return None


def _check_vocabulary(recorded: Recorded, policy: Policy) -> None:
    """Refuse ids of another model's vocabulary."""
    size = policy.causal.get_input_embeddings().num_embeddings
    greatest = max(*recorded.numbers["prompt_ids"], *recorded.numbers["completion_ids"])
    if greatest >= size:
        raise ConfigError(f"token id {greatest} was recorded, and the model has {size}: it is another one")


def _with_new_advantages(recorded: Recorded, config: Config) -> list[Sample]:
    """Compute the advantages again from the recorded rewards."""
    members: dict[int, list[Sample]] = {}
    for place, sample in zip(recorded.numbers["prompt_index"], recorded.samples, strict=True):
        members.setdefault(place, []).append(sample)
    groups = [Group(part[0].prompt, tuple(part)) for part in members.values()]
    return [sample for group in with_advantages(groups, config) for sample in group.samples]
