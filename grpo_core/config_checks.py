"""Check options against each other: refuse contradictions; find options without effect; describe truncated sampling.

`check_contradictions`, `ineffective_options` and `sampling_notes` do these three. The limits of a single option are in
`grpo_core.config`, and are checked when it is read. `check_model_folder` checks that the model's folder exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_core.config import LOOPBACK, Config, ConfigError


def check_contradictions(config: Config, sources: Mapping[str, str]) -> None:
    """Refuse options that contradict each other, and a few values that limits can't express.

    Args:
        config: The configuration.
        sources: `section.key` -> where it was set, for the message; a missing key is called default.

    Raises:
        ConfigError: There is such an option; the message has the keys, the values, where they were set and the fix.
    """
    for find_contradictions in (_prompt_contradictions, _training_contradictions, _rollout_contradictions):
        for keys, fix in find_contradictions(config):
            settings = [
                f"{key} = {value_of(config, key)!r} ({sources.get(key, 'default')})" for key in keys.split()
            ]
            raise ConfigError(f"{', '.join(settings)}: {fix}")


def check_model_folder(config: Config) -> None:
    """Refuse a model folder that does not exist, before anything heavy is imported.

    Raises:
        ConfigError: The folder does not exist.
    """
    if (folder := config.model.path) and not Path(folder).is_dir():
        raise ConfigError(f"model.path = {folder!r}: no such folder; expected a transformers checkpoint")


def value_of(config: Config, key: str) -> Any:
    """Return the value of `section.key`."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def ineffective_options(config: Config, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (key, what it needs) for each of `options` (key -> limits) that has no effect with this configuration."""
    for key, limits in options.items():
        needed, *values = limits.get("needs", ("",))
        if needed and (value_of(config, needed) not in values if values else not value_of(config, needed)):
            yield key, f"{needed} = {' or '.join(map(repr, values))}" if values else needed


def sampling_notes(config: Config) -> Iterator[str]:
    """Describe settings by which the engine samples from another distribution than the trained one (NUM002)."""
    if changed := config.sampling.truncation:
        settings = ", ".join(f"sampling.{key} = {value!r}" for key, value in changed.items())
        weighs = "does not weigh" if config.loss.correction == "none" else "weighs"
        yield (
            f"{settings}: the engine's log-probs are of the distribution that it samples from, the trainer's of the "
            "full one: importance ratios differ from 1 before the first update; "
            f"loss.correction = {config.loss.correction!r} {weighs} them"
        )


def _prompt_contradictions(config: Config) -> Iterator[tuple[str, str]]:
    """Yield (keys, fix) for the task, the data, their lengths, evaluation, and the name of the run."""
    task, data, model, sampling = config.task, config.data, config.model, config.sampling
    if task.min_length > task.max_length:
        yield "task.min_length task.max_length", "min_length must not be greater"
    if len(set(task.letters)) != len(task.letters) or len(task.letters) < 2 or ">" in task.letters:
        yield "task.letters", "expected two or more different letters, without '>', which ends a prompt"
    if not data.path and sampling.max_tokens <= task.max_length:
        fix = "the longest word and the end token don't fit; raise sampling.max_tokens"
        yield "sampling.max_tokens task.max_length", fix
    needed = task.max_length + 1 + sampling.max_tokens
    if not (model.path or data.path) and needed > model.max_length:
        fix = f"the longest prompt and completion need {needed} tokens; raise model.max_length"
        yield "model.max_length task.max_length sampling.max_tokens", fix
    if data.max_prompt_tokens + sampling.max_tokens > model.max_length:
        fix = "the longest prompt and completion don't fit the model; raise model.max_length"
        yield "data.max_prompt_tokens sampling.max_tokens model.max_length", fix
    if config.eval.every and data.path and not config.eval.path:
        yield "eval.every eval.path data.path", "give a data set to evaluate on"
    if config.output.name.startswith("/") or ".." in config.output.name.split("/"):
        fix = "a run's folder lies in output.dir: give a name without .. and no path from the root"
        yield "output.name", fix


def _training_contradictions(config: Config) -> Iterator[tuple[str, str]]:
    """Yield (keys, fix) for the model, the reward, the loss and the number of mini-batches."""
    reward, model, loss, train = config.reward, config.model, config.loss, config.train
    if reward.weights and len(reward.weights) != len(reward.functions):
        yield "reward.weights reward.functions", "expected one weight for each function, or none"
    if reward.overlong_buffer > config.sampling.max_tokens:
        fix = "the buffer is the end of max_tokens and can't be longer"
        yield "reward.overlong_buffer sampling.max_tokens", fix
    if model.hidden_size % 32:
        yield "model.hidden_size", "expected a multiple of 32, the head width"
    if loss.correction_floor > loss.correction_cap:
        fix = "the lower bound of the weights must not be above the upper one"
        yield "loss.correction_floor loss.correction_cap", fix
    if 0 < loss.dual_clip <= 1:
        yield "loss.dual_clip", "expected a number above 1, or 0 for no bound"
    if train.mini_batches > train.prompts_per_step * config.sampling.group_size:
        fix = "there are fewer completions in a step than mini-batches"
        yield "train.mini_batches train.prompts_per_step sampling.group_size", fix


def _rollout_contradictions(config: Config) -> Iterator[tuple[str, str]]:
    """Yield (keys, fix) for sampling, the mode and its engine or server."""
    rollout, updates = config.rollout, config.train.updates
    if config.sampling.top_p < 1 and config.sampling.min_p > 0:
        fix = "engines apply these two in different orders, with different results; set one of them"
        yield "sampling.top_p sampling.min_p", fix
    if rollout.mode == "async" and 0 < rollout.max_staleness < updates:
        fix = f"one step ahead is already {updates} versions old; set max_staleness to at least that, or to 0"
        yield "rollout.max_staleness train.iterations", fix
    starts, external = (rollout.mode == "server" and bool(rollout.port) == runs for runs in (False, True))
    if starts and rollout.server == "vllm":
        fix = "port 0 starts a server of our own; start that one (see docs/servers.md) and give its port"
        yield "rollout.server rollout.port", fix
    if starts and rollout.host not in LOOPBACK:
        fix = "port 0 starts a server on this machine; give the port of the server that runs there"
        yield "rollout.host rollout.port", fix
    if external and config.engine_dtype != "float32":
        fix = "a running server has its own dtype; leave rollout.dtype out, or set rollout.port = 0"
        yield "rollout.dtype rollout.mode rollout.port", fix
