"""Computing a recorded step again: with the settings it had, to the last bit, or with others, to compare."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from grpo_core.advantages import group_advantages
from grpo_core.batch import make_batch
from grpo_core.config import ConfigError
from grpo_core.determinism import settle
from grpo_core.model import load_model
from grpo_core.record import Recorded, as_arguments, read_step
from grpo_core.settings import load
from grpo_core.update import Updater
from grpo_core.weights import fingerprint_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from grpo_core.config import LossConfig
    from grpo_core.types import Sample

SCHEMA = "grpo-doctor.replay.v1"


def replay(
    folder: Path, step: int, policy: Path | None = None, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Computes loss and gradient of a recorded step's first update again, by the trainer's own code.

    Args:
        folder: Of the run.
        step: Counted from 1.
        policy: What the step started from: a transformers checkpoint, or a safetensors file with its parameters;
            None: the model that the run started from.
        overrides: Other settings, as `--section.key=VALUE`; advantages follow from the recorded rewards.

    Returns:
        The document of `replay --json`. `outcome` is `equal` only if loss and gradient have the recorded bits;
        `first_difference` says which of `policy`, `loss` and `gradient` differs first.

    Raises:
        RecordError: The record is missing, torn or altered.
        ConfigError: An override or the policy is not usable.
    """
    recorded = read_step(folder, step)
    config = load(None, [*as_arguments(recorded.config.as_dict()), *overrides])
    settle(config.train.threads)
    start = config.model.path or folder / "model"
    model = load_model(start if policy is None or policy.is_file() else policy, config.train.device)
    if policy is not None and policy.is_file():
        _read_parameters(model, policy)
    reference = load_model(start, config.train.device) if config.loss.kl_coefficient else None
    batch = make_batch(_samples(recorded, config.loss), config.train.device)
    loss, gradient = Updater(model, reference, config).gradients(batch)
    now = {"policy": fingerprint_of(model.named_parameters()), "loss": loss, "gradient": gradient}
    then = {key: recorded.entry["result"].get(key) for key in now}
    # Another program may not know the digest of its policy; it is there to explain a difference.
    differing = [key for key in now if now[key] != then[key] and (key != "policy" or then[key] is not None)]
    return {
        "schema": SCHEMA,
        "step": step,
        "outcome": "different" if differing else "equal",
        "first_difference": differing[0] if differing else None,
        "overrides": list(overrides),
        **now,
        **{f"recorded_{key}": value for key, value in then.items()},
    }


def _read_parameters(model: Any, path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        unused = model.load_state_dict(load_file(path), strict=False)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"{path}: not this model's parameters: {str(error).splitlines()[0]}") from error
    # Parameters that share memory stand there under one name.
    missing = {name for name, _ in model.named_parameters()} & set(unused.missing_keys)
    if missing or unused.unexpected_keys:
        odd = sorted(missing) or unused.unexpected_keys
        raise ConfigError(f"{path}: not this model's parameters: {odd[0]} is missing or unknown")


def _samples(recorded: Recorded, options: LossConfig) -> list[Sample]:
    """The samples; with new advantages if the settings ask for others than those that were recorded."""
    if _advantage_settings(options) == _advantage_settings(recorded.config.loss):
        return recorded.samples
    groups: dict[int, list[float]] = {}
    for place, sample in zip(recorded.numbers["prompt_index"], recorded.samples, strict=True):
        groups.setdefault(place, []).append(sample.reward)
    scale, ddof, epsilon = _advantage_settings(options)
    values = group_advantages(list(groups.values()), scale=scale, ddof=ddof, epsilon=epsilon).values
    flat = [value for group in values for value in group]
    return [dataclasses.replace(s, advantage=a) for s, a in zip(recorded.samples, flat, strict=True)]


def _advantage_settings(options: LossConfig) -> tuple[str, int, float]:
    return options.advantage_scale, options.advantage_ddof, options.advantage_epsilon
