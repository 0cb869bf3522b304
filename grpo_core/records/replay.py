"""Computing a recorded step again: with the settings it had, to the last bit, or with others, to compare."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError
from grpo_core.learn.policy import Policy
from grpo_core.learn.update import Updater, put_back
from grpo_core.machine.determinism import settle
from grpo_core.machine.resources import resolve
from grpo_core.machine.world import World
from grpo_core.records import given
from grpo_core.records.recording import EXACT, Recorded, as_arguments, digest_like, gradient_digest, read_step
from grpo_core.settings import load
from grpo_core.tasks.model import first_line, load_model
from grpo_core.types import Group

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from grpo_core.types import Sample

SCHEMA = "grpo-doctor.replay.v1"
# More than any machine has; a million of them end the process.
MOST_THREADS = 4096


def replay(
    folder: Path, step: int, policy: Path | None = None, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Computes loss and gradient of a recorded step's first update again, by the trainer's own code.

    Args:
        folder: Of the run.
        step: Counted from 1.
        policy: What the step started from: a transformers checkpoint, or `policy.safetensors` of a checkpoint of
            the run; None: it is looked for in the run's folder.
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
        return _computed(folder, recorded, policy, overrides)
    except (RuntimeError, AssertionError) as error:  # of torch: of settings that nothing here can compute
        raise ConfigError(f"{folder}: step {step}: can't be computed here: {first_line(error)}") from error


def _computed(
    folder: Path, recorded: Recorded, policy: Path | None, overrides: Sequence[str]
) -> dict[str, Any]:
    step = int(recorded.entry["step"])
    config = load(None, [*as_arguments(recorded.config.as_dict()), *overrides])
    if config.train.threads > MOST_THREADS:  # a record's settings are those of whoever wrote it
        raise ConfigError(f"train.threads: {config.train.threads}: expected at most {MOST_THREADS}")
    # A name would be looked for on the hub: what adapts a model is asked for there, whatever else stays here.
    if config.model.path and not os.path.isdir(config.model.path):  # noqa: PTH112 - a NUL in it is no error
        raise ConfigError(f"model.path = {config.model.path!r}: no such folder; give one with --model.path")
    config = resolve(config)
    settle(config.train.threads)
    held = Policy(config.model.path or str(folder / "model"), config, World())
    version = recorded.entry["policy_version"]
    source = policy or _kept(folder, version)
    if source is not None:
        _take_over(held, source)
    elif version:
        raise ConfigError(
            f"{folder}: step {step} started from policy version {version}, and no checkpoint kept has it; "
            "give its parameters with --policy, or run with a greater checkpoint.keep"
        )
    # The recorded advantages are taken as they are, unless other ones are asked for.
    judged = any(override.startswith("--loss.advantage_") for override in overrides)
    updater = Updater(held, config, World())
    _known(recorded, held)
    samples = _judged(recorded, updater) if judged else recorded.samples
    batch = held.make_batch(samples, held.device)
    then = {key: recorded.entry["result"].get(key) for key in ("policy", "loss", "gradient")}
    loss = updater.gradients(batch)
    gradient = gradient_digest(held, str(then["gradient"] or EXACT))
    digest = digest_like(str(then["policy"] or EXACT), held.tensors())
    now = {"policy": digest, "loss": loss, "gradient": gradient}
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


def _known(recorded: Recorded, held: Policy) -> None:
    """Refuses ids of another model's vocabulary."""
    words = held.causal.get_input_embeddings().num_embeddings
    greatest = max(*recorded.numbers["prompt_ids"], *recorded.numbers["completion_ids"])
    if greatest >= words:
        raise ConfigError(f"token id {greatest} was recorded, and the model has {words}: it is another one")


def _kept(folder: Path, version: int) -> Path | None:
    """The parameters of a policy version, if one of the run's checkpoints has them."""
    for path in sorted(folder.glob("checkpoints/step-*/state.json")):
        try:
            state = json.loads(given.read(path, inside=folder))
        except (OSError, ValueError):
            continue
        if isinstance(state, dict) and state.get("version") == version:
            try:
                return given.found_at(path.parent / "policy.safetensors", inside=folder)
            except (OSError, ValueError) as error:
                raise ConfigError(f"the parameters kept of version {version}: {error}") from None
    return None


def _take_over(held: Policy, source: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if source.is_dir():
            state = {f"causal.{name}": value for name, value in load_model(source).named_parameters()}
        else:
            state = load_file(given.found_at(source))
        put_back(held, state)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        wrong = " ".join(str(error).split())
        raise ConfigError(f"{source}: expected this model's parameters by name: {wrong}") from error


def _judged(recorded: Recorded, updater: Updater) -> list[Sample]:
    """The samples, with the advantages that the updater's settings make of their rewards."""
    groups: dict[int, list[Sample]] = {}
    for place, sample in zip(recorded.numbers["prompt_index"], recorded.samples, strict=True):
        groups.setdefault(place, []).append(sample)
    judged = updater.judged([Group(part[0].prompt, tuple(part)) for part in groups.values()])
    return [sample for group in judged for sample in group.samples]
