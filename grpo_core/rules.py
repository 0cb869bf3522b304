"""What settings mean together: which contradict each other, and which have no effect."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from grpo_core.config import LOOPBACK, ConfigError, LossConfig

if TYPE_CHECKING:
    from grpo_core.config import Config


def check(config: Config, sources: dict[str, str] | None = None) -> None:
    """Refuses settings that contradict each other.

    Args:
        config: What was asked for.
        sources: `section.key` -> where it was set, for the message; defaults are named as such.

    Raises:
        ConfigError: Says which keys, and how to mend it.
    """
    found = _contradictions(config)
    if config.wide:
        from grpo_core.wide import contradictions

        found += contradictions(config)
    for keys, wrong, remedy in found:
        if wrong:
            places = (
                f"{key} = {_value(config, key)!r} ({(sources or {}).get(key, 'default')})" for key in keys
            )
            raise ConfigError(f"{', '.join(places)}: {remedy}")


def check_folders(config: Config, *, counted: bool = True) -> None:
    """Refuses models that are not there, before anything heavy is imported, or can't be: not when records are read.

    Raises:
        ConfigError: Names the key and the folder.
    """
    for key in ("model.path", "reward.model"):
        if folder := _value(config, key):
            from grpo_core.extras import extra

            extra("model").check_folder(key, folder, counted=counted)


def ignored(config: Config) -> list[tuple[str, str]]:
    """Keys that have no effect in the mode that is set, and why: (key, reason)."""
    mode, external = config.rollout.mode, config.rollout.mode == "server" and config.rollout.port != 0
    rules = [
        (external, ("engine", "device", "max_batch"), "the server that runs already has its own"),
        (mode != "async", ("max_staleness", "partial_tokens"), f"nothing is sampled ahead in {mode} mode"),
        (mode != "server", ("server", "host", "port", "reconnect_s"), f"there is no server in {mode} mode"),
        (mode == "colocate", ("timeout_s", "sync"), "the engine is in this process"),
        (mode == "server" and not external, ("reconnect_s",), "a server started for the run ends with it"),
        (not external, ("token_file",), "no server is called that runs already"),
        (True, ("on_update",), "it is a setting of `serve`"),
    ]
    found = [(f"rollout.{key}", why) for applies, keys, why in rules if applies for key in keys]
    found.append(("output.page", "curves are for TensorBoard and W&B (output.tensorboard, output.wandb)"))
    if config.data.path:
        found += [(f"task.{key.name}", "data.path is set") for key in dataclasses.fields(config.task)]
    if config.loss != LossConfig():
        from grpo_core.learn.unused import unused

        found += unused(config.loss)
    if config.model.path:
        found += [(f"model.{key}", "model.path is set") for key in ("hidden_size", "layers")]
    return found


def _value(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def _contradictions(config: Config) -> list[tuple[tuple[str, ...], bool, str]]:
    """The rules between keys: (keys, is it broken, what is expected instead)."""
    task, data, reward, model = config.task, config.data, config.reward, config.model
    rollout, sampling, train, loss = config.rollout, config.sampling, config.train, config.loss
    needed = task.max_length + 1 + sampling.max_tokens
    ahead, starts = rollout.mode == "async", rollout.mode == "server" and rollout.port == 0
    return [
        (("task.min_length", "task.max_length"), task.min_length > task.max_length, "min_length must not be greater"),
        (("output.name",), config.output.name.startswith("/") or ".." in config.output.name.split("/"),
         "a run's folder lies in output.dir: give a name without .. and no path from the root"),
        (("task.letters",),
         len(set(task.letters)) != len(task.letters) or len(task.letters) < 2 or ">" in task.letters,
         "expected two or more different letters, without '>', which ends a prompt"),
        (("model.hidden_size",), model.hidden_size % 32 != 0, "expected a multiple of 32, the head width"),
        (("model.max_length", "task.max_length", "sampling.max_tokens"),
         not (model.path or data.path) and needed > model.max_length,
         f"the longest prompt and completion need {needed} tokens; raise model.max_length"),
        (("sampling.max_tokens", "task.max_length"), not data.path and sampling.max_tokens <= task.max_length,
         "the longest word and the end token don't fit; raise sampling.max_tokens"),
        (("rollout.partial_tokens", "rollout.max_staleness", "train.iterations"),
         ahead and rollout.partial_tokens > 0 and rollout.max_staleness < 2 * train.updates,
         f"a completion that goes on under a later version is at least {2 * train.updates} versions old in the "
         "end; raise max_staleness to that, or set partial_tokens to 0"),
        (("data.max_prompt_tokens", "sampling.max_tokens", "model.max_length"),
         data.max_prompt_tokens + sampling.max_tokens > model.max_length,
         "the longest prompt and completion don't fit the model; raise model.max_length"),
        (("eval.every", "eval.path", "data.path"), bool(config.eval.every and data.path) and not config.eval.path,
         "give a data set to evaluate on"),
        (("reward.weights", "reward.functions"),
         bool(reward.weights) and len(reward.weights) != len(reward.functions) + bool(reward.model),
         "expected one weight for each function (and one for reward.model, last), or none"),
        (("reward.overlong_buffer", "sampling.max_tokens"), reward.overlong_buffer > sampling.max_tokens,
         "the buffer is the end of max_tokens and can't be longer"),
        (("loss.entropy_quantile",), loss.entropy_quantile >= 1,
         "expected less than 1: some tokens must be left to learn from"),
        (("loss.kl_placement", "loss.kl_importance"), loss.kl_placement == "reward" and loss.kl_importance,
         "a KL in the reward has no gradient that could be corrected"),
        (("model.lora_rank", "train.sharding"), model.lora_rank > 0 and train.sharding == "fsdp2",
         "adapters are not sharded; set train.sharding = 'replicate'"),
        (("loss.correction_floor", "loss.correction_cap"), loss.correction_floor > loss.correction_cap,
         "the lower bound of the weights must not be above the upper one"),
        (("loss.dual_clip",), 0 < loss.dual_clip <= 1, "expected a number above 1, or 0 for no bound"),
        (("rollout.max_staleness", "train.iterations"), ahead and 0 < rollout.max_staleness < train.updates,
         f"one step ahead is already {train.updates} versions old; set max_staleness to at least that, or to 0"),
        (("rollout.server", "rollout.port"), starts and rollout.server in ("vllm", "trl"),
         "port 0 starts a server of our own; start that one (see docs/servers.md) and give its port"),
        (("rollout.host", "rollout.port"), starts and rollout.host not in LOOPBACK,
         "port 0 starts a server on this machine; give the port of the server that runs there"),
    ]  # fmt: skip
