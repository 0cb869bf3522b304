"""Rules between settings: contradictions, settings without effect, and sampling that is not what is trained."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from grpo_core.config import LOOPBACK, Config, ConfigError


def check(config: Config, sources: dict[str, str] | None = None) -> None:
    """Refuse settings that contradict each other.

    Args:
        config: The settings.
        sources: `section.key` -> where it was set, for the message; others are called default.

    Raises:
        ConfigError: Names the keys and the fix.
    """
    for keys, broken, fix in _contradictions(config):
        if broken:
            settings = (
                f"{key} = {_value(config, key)!r} ({(sources or {}).get(key, 'default')})" for key in keys
            )
            raise ConfigError(f"{', '.join(settings)}: {fix}")


def check_folders(config: Config) -> None:
    """Refuse model folders that do not exist, before anything heavy is imported.

    Raises:
        ConfigError: Names the key and the folder.
    """
    for key in ("model.path", "reward.model"):
        folder = _value(config, key)
        if folder and not Path(folder).is_dir():
            raise ConfigError(f"{key} = {folder!r}: no such folder; expected a transformers checkpoint")


def mismatches(config: Config) -> list[str]:
    """Describe sampling from another distribution than the one that is trained (NUM002)."""
    if not (changed := config.sampling.truncation):
        return []
    settings = ", ".join(f"sampling.{key} = {value!r}" for key, value in changed.items())
    correction = "loss.correction weighs them"
    if config.loss.correction == "none":
        correction = "loss.correction = 'none' does not weigh them"
    return [
        f"{settings}: the engine's log-probs are of the distribution that it samples from, the trainer's of the full "
        f"one: importance ratios differ from 1 before the first update; {correction}"
    ]


def ignored(config: Config) -> list[tuple[str, str]]:
    """Return keys without effect in these settings: (key, reason)."""
    mode, external = config.rollout.mode, config.rollout.mode == "server" and config.rollout.port != 0
    loss = config.loss
    rules = [
        (external, "rollout", ("engine", "device", "max_batch"), "the server that runs already has its own"),
        (mode != "async", "rollout", ("max_staleness",), f"nothing is sampled ahead in {mode} mode"),
        (mode != "server", "rollout", ("server", "host", "port", "reconnect_s"), f"there is no server in {mode} mode"),
        (mode == "colocate", "rollout", ("timeout_s", "sync"), "the engine is in this process"),
        (mode == "server" and not external, "rollout", ("reconnect_s",), "a server started for the run ends with it"),
        (not external, "rollout", ("token_file",), "no server is called that runs already"),
        (bool(config.data.path), "task", [key.name for key in dataclasses.fields(config.task)], "data.path is set"),
        (config.train.epochs > 0, "train", ("steps",), "train.epochs is set"),
        (bool(config.model.path), "model", ("hidden_size", "layers"), "model.path is set"),
        (loss.advantage_scale == "none", "loss", ("advantage_ddof", "advantage_epsilon"), "no deviation divides"),
        (loss.surrogate == "sapo", "loss", ("clip_low", "clip_high"), "sapo has a sigmoid in place of the clip"),
        (loss.surrogate != "clip", "loss", ("ratio_cap", "dual_clip"),
         f"it is of the surrogate clip, not of {loss.surrogate}"),
        (loss.surrogate != "sapo", "loss", ("sapo_temperature_positive", "sapo_temperature_negative"),
         "it is of the surrogate sapo"),
        (loss.kl_coefficient == 0, "loss", ("kl_estimator", "kl_importance", "kl_log_ratio_limit", "kl_limit"),
         "loss.kl_coefficient is 0"),
        (loss.correction == "none", "loss", ("correction_level", "correction_cap", "correction_floor"),
         "loss.correction is none"),
    ]  # fmt: skip
    return [
        (f"{section}.{key}", reason) for applies, section, keys, reason in rules if applies for key in keys
    ]


def _value(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def _contradictions(config: Config) -> list[tuple[tuple[str, ...], bool, str]]:
    """Return the rules: (keys, whether they contradict, the fix)."""
    task, data, reward, model = config.task, config.data, config.reward, config.model
    rollout, sampling, train, loss = config.rollout, config.sampling, config.train, config.loss
    needed = task.max_length + 1 + sampling.max_tokens
    ahead, server = rollout.mode == "async", rollout.mode == "server"
    starts, external = server and rollout.port == 0, server and rollout.port != 0
    completions = train.prompts_per_step * sampling.group_size
    return [
        (
            ("task.min_length", "task.max_length"),
            task.min_length > task.max_length,
            "min_length must not be greater",
        ),
        (
            ("output.name",),
            config.output.name.startswith("/") or ".." in config.output.name.split("/"),
            "a run's folder lies in output.dir: give a name without .. and no path from the root",
        ),
        (
            ("task.letters",),
            len(set(task.letters)) != len(task.letters) or len(task.letters) < 2 or ">" in task.letters,
            "expected two or more different letters, without '>', which ends a prompt",
        ),
        (("model.hidden_size",), model.hidden_size % 32 != 0, "expected a multiple of 32, the head width"),
        (
            ("model.max_length", "task.max_length", "sampling.max_tokens"),
            not (model.path or data.path) and needed > model.max_length,
            f"the longest prompt and completion need {needed} tokens; raise model.max_length",
        ),
        (
            ("sampling.max_tokens", "task.max_length"),
            not data.path and sampling.max_tokens <= task.max_length,
            "the longest word and the end token don't fit; raise sampling.max_tokens",
        ),
        (
            ("sampling.top_p", "sampling.min_p"),
            sampling.top_p < 1 and sampling.min_p > 0,
            "engines apply these two in different orders, with different results; set one of them",
        ),
        (
            ("data.max_prompt_tokens", "sampling.max_tokens", "model.max_length"),
            data.max_prompt_tokens + sampling.max_tokens > model.max_length,
            "the longest prompt and completion don't fit the model; raise model.max_length",
        ),
        (
            ("eval.every", "eval.path", "data.path"),
            bool(config.eval.every and data.path) and not config.eval.path,
            "give a data set to evaluate on",
        ),
        (
            ("train.epochs", "data.path"),
            train.epochs > 0 and not data.path,
            "the shipped task has no last row; set train.steps",
        ),
        (
            ("reward.weights", "reward.functions"),
            bool(reward.weights) and len(reward.weights) != len(reward.functions) + bool(reward.model),
            "expected one weight for each function (and one for reward.model, last), or none",
        ),
        (
            ("reward.overlong_buffer", "sampling.max_tokens"),
            reward.overlong_buffer > sampling.max_tokens,
            "the buffer is the end of max_tokens and can't be longer",
        ),
        (
            ("model.lora_rank", "train.sharding"),
            model.lora_rank > 0 and train.sharding == "fsdp2",
            "adapters are not sharded; set train.sharding = 'replicate'",
        ),
        (
            ("loss.correction_floor", "loss.correction_cap"),
            loss.correction_floor > loss.correction_cap,
            "the lower bound of the weights must not be above the upper one",
        ),
        (("loss.dual_clip",), 0 < loss.dual_clip <= 1, "expected a number above 1, or 0 for no bound"),
        (
            ("rollout.max_staleness", "train.iterations"),
            ahead and 0 < rollout.max_staleness < train.updates,
            f"one step ahead is already {train.updates} versions old; set max_staleness to at least that, or to 0",
        ),
        (
            ("rollout.server", "rollout.port"),
            starts and rollout.server in ("vllm", "trl"),
            "port 0 starts a server of our own; start that one (see docs/servers.md) and give its port",
        ),
        (
            ("rollout.host", "rollout.port"),
            starts and rollout.host not in LOOPBACK,
            "port 0 starts a server on this machine; give the port of the server that runs there",
        ),
        (
            ("loss.surrogate", "loss.correction"),
            loss.surrogate == "moved" and loss.correction != "none",
            "its ratio is to the engine's log-probs already; set loss.correction = 'none'",
        ),
        (
            ("loss.surrogate", "loss.correction", "loss.correction_level"),
            loss.surrogate == "vespo" and loss.correction != "none" and loss.correction_level != "token",
            "its weights of a sequence are made of those of tokens, as in TRL; set loss.correction_level = 'token'",
        ),
        (
            ("train.mini_batches", "train.prompts_per_step", "sampling.group_size"),
            train.mini_batches > completions,
            "there are fewer completions in a step than mini-batches",
        ),
        (
            ("model.dtype", "loss.entropy_coefficient"),
            config.lowered and bool(loss.entropy_coefficient),
            "a lower dtype is not tried with an entropy bonus; use float32",
        ),
        (
            ("rollout.dtype", "rollout.mode", "rollout.port"),
            config.engine_dtype != "float32" and external,
            "a running server has its own dtype; leave rollout.dtype out, or set rollout.port = 0",
        ),
    ]
