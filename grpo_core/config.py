"""Define the options of a run as dataclasses, one per section: meaning, default, allowed values.

`grpo_core.settings` reads them from TOML and `--section.key VALUE`; `python -m grpo_core train --help-settings` prints
the text below each option. Properties derive values from several options, such as the engine's dtype. This module also
defines the errors `ConfigError` and `RecordError`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any


class ConfigError(ValueError):
    """Raised when an option is unknown or malformed, contradicts another or can't be used, or saving a run fails."""


class RecordError(RuntimeError):
    """Raised when a recorded step is missing, torn, altered or not in the format."""


def option(default: Any, **limits: Any) -> Any:
    """Define a field with its default and limits.

    `low` and `high` are inclusive, `above` and `below` exclusive. `choices` lists the allowed values (of each item, if
    the option is a list). `needs` is another key and the values with which this option has an effect; without values,
    any but 0 and empty.
    """
    return field(default=default, metadata=limits)


_PEERS = ("group", "leave_one_out", "batch", "none")
DTYPES = ("float32", "bfloat16", "float16")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Conditions under which an option has an effect (`needs`).
_SHIPPED_TASK, _TINY_MODEL = ("data.path", ""), ("model.path", "")
_ASYNC, _SERVER = ("rollout.mode", "async"), ("rollout.mode", "server")
_SEPARATE, _OWN_ENGINE = ("rollout.mode", "async", "server"), ("rollout.port", 0)
_CLIP, _SAPO = ("loss.surrogate", "clip"), ("loss.surrogate", "sapo")
_BOUNDS, _DEVIATION = ("loss.surrogate", "clip", "cispo"), ("loss.advantage_scale", *_PEERS[:-1])
_KL, _CORRECTION = ("loss.kl_coefficient",), ("loss.correction", "truncate", "mask")


@dataclass(frozen=True)
class TaskConfig:
    """The shipped task: generated words, with a reward computed from the text."""

    kind: str = option("repeat", choices=("repeat", "reverse"), needs=_SHIPPED_TASK)
    """Repeat a word, or write it backwards. Ignored if data.path is set."""
    letters: str = option("abcdefghij", needs=_SHIPPED_TASK)
    """The letters of the words."""
    min_length: int = option(3, low=1, needs=_SHIPPED_TASK)
    """Shortest word."""
    max_length: int = option(3, low=1, needs=_SHIPPED_TASK)
    """Longest word."""


@dataclass(frozen=True)
class DataConfig:
    """Your own prompts instead of the shipped task's."""

    path: str = option("")
    """A JSON lines or Parquet file, or a folder of Hugging Face datasets' `save_to_disk`. Empty: the shipped task."""
    split: str = option("")
    """The split, if a folder has several."""
    prompt: str = option("prompt")
    """The column with the prompt: a text or a list of chat messages. Reward functions receive the other columns."""
    template: str = option("auto", choices=("auto", "chat", "none"))
    """Apply the tokenizer's chat template to prompts. `auto`: to lists of messages, not to texts."""
    max_prompt_tokens: int = option(0, low=0)
    """Longest prompt. 0: model.max_length minus sampling.max_tokens."""
    over_limit: str = option("drop", choices=("drop", "truncate", "error"))
    """Drop a longer prompt, remove its first tokens, or end the run. The summary counts such prompts."""
    shuffle: bool = option(default=True)
    """Shuffle rows in each epoch, seeded by train.seed. False: the order of the file."""


@dataclass(frozen=True)
class RewardConfig:
    """The reward of a completion: a weighted sum of functions, minus penalties."""

    functions: tuple[str, ...] = option(())
    """Names of built-in functions, or `file.py:function`. Empty: the shipped task's function."""
    weights: tuple[float, ...] = option(())
    """One per function. Empty: 1 each."""
    overlong_buffer: int = option(0, low=0)
    """Soft overlong penalty (DAPO): it rises linearly over this many tokens before sampling.max_tokens. 0: none."""
    overlong_penalty: float = option(1.0, low=0)
    """The penalty of a completion of full length."""
    convention: str = option("text", choices=("text", "trl"))
    """Arguments of functions. `text`: prompts and completions as texts with special tokens. `trl`: as in TRL, without
    special tokens, and as lists of messages if the prompts are messages."""


@dataclass(frozen=True)
class ModelConfig:
    """The model to train."""

    path: str = option("")
    """A folder with a transformers checkpoint and tokenizer. Empty: a tiny Llama is created in a second."""
    hidden_size: int = option(64, low=32, needs=_TINY_MODEL)
    """Width of the tiny model, a multiple of its head width of 32 (vLLM's CPU kernels refuse 16)."""
    layers: int = option(1, low=1, needs=_TINY_MODEL)
    """Layers of the tiny model."""
    max_length: int = option(256, low=4)
    """Longest prompt plus completion, in tokens."""
    lora_rank: int = option(0, low=0)
    """Train low-rank adapters of this rank (by peft). 0: train the weights."""
    lora_alpha: float = option(16.0, above=0)
    """Adapters are scaled by alpha / rank."""
    lora_targets: tuple[str, ...] = option(("all-linear",))
    """Names of the layers that get adapters."""
    dtype: str = option("float32", choices=("float32", "bfloat16"))
    """The trainer's compute type. Weights, gradients and the optimizer stay in float32."""
    float32_parts: tuple[str, ...] = option(("head", "norms"), choices=("head", "norms"))
    """With bfloat16: the parts that compute in float32."""
    gradient_checkpointing: bool = option(default=False)
    """Recompute activations in the backward pass instead of keeping them."""


@dataclass(frozen=True)
class RolloutConfig:
    """The source of completions."""

    mode: str = option("colocate", choices=("colocate", "async", "server"))
    """`colocate`: trainer and engine take turns in this process. `async`: the engine works ahead in its own process.
    `server`: the engine is behind HTTP."""
    engine: str = option("transformers", choices=("transformers", "vllm"), needs=_OWN_ENGINE)
    """The engine that samples; also the engine of a server that the run starts."""
    max_staleness: int = option(1, low=0, needs=_ASYNC)
    """Async: highest age of a token in policy versions. 0 waits for every update and gives the numbers of colocate."""
    server: str = option("grpo-core", choices=("grpo-core", "vllm"), needs=_SERVER)
    """Server mode: the kind of server: `python -m grpo_core serve`, or `vllm serve` and `trl vllm-serve`."""
    host: str = option("127.0.0.1", needs=_SERVER)
    """Server mode: the server's host."""
    port: int = option(0, low=0, needs=_SERVER)
    """Server mode: the port of a running server; 0 starts one for this run. `serve`: the port to listen on; 0: any."""
    timeout_s: float = option(120.0, above=0, needs=_SEPARATE)
    """Seconds that a server, or an engine in another process, may take to start or to answer one call."""
    device: str = option("auto", needs=_OWN_ENGINE)
    """Torch device of the engine. `auto`: the trainer's. In async and server mode, if the trainer uses GPUs, it is the
    first GPU that the trainer does not use, if there is one."""
    memory_share: float = option(0.45, above=0, high=0.95)
    """If both use one GPU at the same time: the engine's share of its memory. The trainer gets the rest."""
    max_batch: int = option(256, low=1, needs=_OWN_ENGINE)
    """Most completions that the transformers engine samples at one time."""
    sync: str = option("auto", choices=("auto", "shm", "http", "files"), needs=_SEPARATE)
    """Transport of weights to the engine (docs/sync.md, docs/servers.md). `auto`: shm to an engine that the run starts,
    http to a running server, files to vLLM's server."""
    sync_tolerance: float = option(0.0, low=0)
    """Largest log-prob difference between engine and trainer that the probe after a weight update accepts as rounding.
    0: set by the less exact of their types: 0.001 for float32, 0.05 for float16, 0.2 for bfloat16."""
    dtype: str = option("auto", choices=("auto", *DTYPES))
    """The engine's type, in which weights are sent. `auto`: model.dtype, or float32 for a running server."""


@dataclass(frozen=True)
class SamplingConfig:
    """Sampling of completions."""

    group_size: int = option(16, low=2)
    """Completions per prompt."""
    max_tokens: int = option(6, low=1)
    """Longest completion, in tokens."""
    temperature: float = option(1.0, low=0.01)
    """Divides the logits, in sampling and in training."""
    top_p: float = option(1.0, above=0, high=1)
    """Sample from the most probable tokens that together have this probability. Like top_k, min_p and
    repetition_penalty it changes the sampled tokens and their log-probs, not the trained distribution
    (docs/trainer.md)."""
    top_k: int = option(0, low=0)
    """Sample from this many most probable tokens. 0: from all."""
    min_p: float = option(0.0, low=0, high=1)
    """Sample from tokens with at least this share of the highest probability. 0: from all."""
    repetition_penalty: float = option(1.0, above=0)
    """Divides the positive logits of tokens of the prompt and completion so far, and multiplies the negative ones."""
    dynamic: bool = option(default=False)
    """Dynamic sampling (DAPO): replace groups whose rewards are all equal by groups of further prompts."""
    max_resample_times: int = option(3, low=1)
    """Most further rollouts in a step. After that, groups without a signal fill the step."""
    overlong_filter: bool = option(default=False)
    """Completions truncated at max_tokens get a reward, but no gradient."""

    @property
    def truncation(self) -> dict[str, Any]:
        """The parameters besides the temperature that change what is sampled, where they are set."""
        neutral = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
        return {name: getattr(self, name) for name, value in neutral.items() if getattr(self, name) != value}


@dataclass(frozen=True)
class TrainConfig:
    """The optimizer and its batches."""

    steps: int = option(300, low=1)
    """Rollout batches to train on. Ignored if epochs is set."""
    epochs: float = option(0.0, low=0, needs=("data.path",))
    """Passes over data.path; replaces train.steps. 0: train.steps applies."""
    prompts_per_step: int = option(16, low=1)
    """Prompts per rollout batch."""
    micro_batch: int = option(256, low=1)
    """Completions per forward and backward pass; their gradients add up over a batch."""
    iterations: int = option(1, low=1)
    """Passes over each rollout batch."""
    learning_rate: float = option(1.5e-3, above=0)
    """Learning rate of AdamW after the warm-up."""
    warmup_updates: int = option(10, low=0)
    """Updates of the linear warm-up."""
    weight_decay: float = option(0.0, low=0)
    """Weight decay of AdamW."""
    max_grad_norm: float = option(1.0, above=0)
    """Gradients are scaled down to this norm."""
    seed: int = option(0, low=0)
    """Seed of the tiny model, new adapters, the words or the order of the rows, and every sample."""
    threads: int = option(1, low=1)
    """Torch threads of trainer and engine. Runs are bit-identical only with the same number of threads."""
    device: str = option("auto")
    """Torch device of the model. `auto`: a GPU if there is one (one per process under torchrun), else the CPU."""
    logprob_chunk: int = option(256, low=1)
    """Number of positions whose logits are in memory at one time."""
    mini_batches: int = option(1, low=1)
    """Optimizer updates per pass over a rollout batch (verl's train_batch_size / ppo_mini_batch_size, TRL's
    steps_per_generation / gradient_accumulation_steps). Ratios are to the policy before the first of these updates."""
    mini_batch_normaliser: str = option("mini_batch", choices=("mini_batch", "rollout"))
    """Divide a mini-batch's loss by its own tokens and completions (verl 0.9), or by the rollout's tokens and
    completions divided by the number of mini-batches (TRL's dapo from 1.9.1 on)."""
    scheduler: str = option("constant", choices=("constant", "linear", "cosine"))
    """Schedule of the learning rate from the warm-up to the run's last update, as in transformers."""
    final_rate: float = option(0.0, low=0, high=1)
    """Learning rate at the end of a schedule, as a share of train.learning_rate."""
    beta1: float = option(0.9, low=0, below=1)
    """AdamW's beta1."""
    beta2: float = option(0.95, low=0, below=1)
    """AdamW's beta2."""
    epsilon: float = option(1e-8, above=0)
    """AdamW's epsilon."""

    @property
    def updates(self) -> int:
        """Optimizer updates on each rollout batch."""
        return self.iterations * self.mini_batches


@dataclass(frozen=True)
class LossConfig:
    """The loss; see `grpo_core.learn.losses`."""

    dialect: str = option("")
    """Another trainer's loss, such as verl-0.9.1/grpo (grpo_core/learn/dialects.py). It sets the other defaults."""
    advantage_baseline: str = option("group", choices=_PEERS)
    """Subtracted from a reward: the mean of its group, of the others in its group, of the batch, or 0."""
    advantage_scale: str = option("group", choices=_PEERS)
    """Divides the difference: the standard deviation of the rewards of its group, of the others in its group, of the
    batch, or 1. If these rewards are all equal, the divisor is 1."""
    advantage_ddof: int = option(1, choices=(0, 1), needs=_DEVIATION)
    """1: the deviation divides by n - 1, as torch does. 0: by n, as numpy does."""
    advantage_epsilon: float = option(1e-4, low=0, needs=_DEVIATION)
    """Added to the deviation."""
    ratio: str = option("token", choices=("token", "sequence", "sequence_token"))
    """Ratio current / proximal of each token, or its geometric mean over a sequence (GSPO). `sequence_token`: the value
    of `sequence`, with the gradient of each token (verl's gspo)."""
    surrogate: str = option("clip", choices=("clip", "cispo", "sapo"))
    """`clip`: PPO's clipped ratio. `cispo`: the ratio, clipped and without gradient, times the log-prob. `sapo`: a
    sigmoid of the ratio."""
    clip_low: float = option(0.2, low=0, needs=_BOUNDS)
    """The ratio is clipped at 1 minus this. 1: no lower clipping."""
    clip_high: float = option(0.2, low=0, needs=_BOUNDS)
    """The ratio is clipped at 1 plus this."""
    ratio_cap: float = option(0.0, low=0, needs=_CLIP)
    """Upper limit of a ratio that is not clipped (TRL's delta). 0: none."""
    dual_clip: float = option(0.0, low=0, needs=_CLIP)
    """Upper limit of a token's loss for a negative advantage A: this times -A. Above 1, or 0 for no limit."""
    log_ratio_limit: float = option(0.0, low=0)
    """The log of the ratio is clamped to plus or minus this. 0: no clamp."""
    sapo_temperature_positive: float = option(1.0, above=0, needs=_SAPO)
    """sapo: temperature for a positive advantage."""
    sapo_temperature_negative: float = option(1.05, above=0, needs=_SAPO)
    """sapo: temperature for other advantages."""
    kl_coefficient: float = option(0.0, low=0)
    """Weight of the KL to the model before training. 0: no reference model."""
    kl_estimator: str = option("k3", choices=("k1", "k2", "k3"), needs=_KL)
    """Schulman's estimator of the KL."""
    kl_importance: bool = option(default=False, needs=_KL)
    """Multiply the KL estimate by the ratio: its gradient then also stays unbiased after the first update of a step."""
    kl_log_ratio_limit: float = option(0.0, low=0, needs=_KL)
    """The log of reference / current is clamped to plus or minus this in the KL. 0: no clamp."""
    kl_limit: float = option(0.0, low=0, needs=_KL)
    """A token's KL estimate is clamped to plus or minus this. 0: no clamp."""
    aggregation: str = option("token", choices=("token", "sequence", "sequence_sum", "constant"))
    """Equal weight for: every token of the batch, every sequence's mean, every sequence's sum, or every position up to
    max_tokens (`constant`)."""
    correction: str = option("truncate", choices=("none", "truncate", "mask"))
    """Importance correction for the mismatch of trainer and engine, and for staleness. Weights out of bounds become the
    bound (`truncate`) or 0 (`mask`)."""
    correction_level: str = option("token", choices=("token", "sequence"), needs=_CORRECTION)
    """Correct each token by its own weight, or by the product of the weights of its sequence."""
    correction_cap: float = option(2.0, low=1, needs=_CORRECTION)
    """Upper bound of the correction's weights."""
    correction_floor: float = option(0.0, low=0, needs=_CORRECTION)
    """Lower bound of the correction's weights. 0: none."""


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation during training; each uses one policy version."""

    every: int = option(0, low=0)
    """Evaluate every N steps, before the step trains; in async mode only if the engine is idle then. 0: never."""
    prompts: int = option(64, low=1)
    """Number of evaluation prompts (the same each time; no more than eval.path has), with one completion each."""
    temperature: float = option(1.0, low=0.01)
    """Temperature of these completions."""
    path: str = option("")
    """A data set, read like data.path; for a folder with several splits, the split's own folder. Empty: words of the
    shipped task, drawn apart from those of training."""


@dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints, from which a killed run continues exactly."""

    every: int = option(1, low=0)
    """Save a checkpoint every N steps and after the last step. 0: never."""
    keep: int = option(1, low=1)
    """Number of newest checkpoints to keep."""


@dataclass(frozen=True)
class OutputConfig:
    """Files of a run."""

    dir: str = option("runs")
    """Folder of all runs."""
    name: str = option("")
    """Folder of this run, inside output.dir. Empty: the rollout mode and the time. A run that has steps is resumed
    (--resume) or refused."""
    completions_every: int = option(10, low=0)
    """Write the completions of the first step, of every Nth step after it, and of the last. 0: none."""
    record_every: int = option(0, low=0)
    """Record all data of the first step, of every Nth step after it, and of the last, for `replay`. 0: none."""


@dataclass(frozen=True)
class Config:
    """All options of a run."""

    task: TaskConfig = TaskConfig()
    data: DataConfig = DataConfig()
    reward: RewardConfig = RewardConfig()
    model: ModelConfig = ModelConfig()
    rollout: RolloutConfig = RolloutConfig()
    sampling: SamplingConfig = SamplingConfig()
    train: TrainConfig = TrainConfig()
    loss: LossConfig = LossConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    output: OutputConfig = OutputConfig()

    @property
    def engine_dtype(self) -> str:
        """The engine's dtype. `auto` is the trainer's dtype, or float32 for a running server."""
        if self.rollout.dtype != "auto":
            return self.rollout.dtype
        runs_already = self.rollout.mode == "server" and self.rollout.port != 0
        return "float32" if runs_already else self.model.dtype

    @property
    def low_precision(self) -> bool:
        """Whether trainer or engine computes in a dtype other than float32."""
        return (self.model.dtype, self.engine_dtype) != ("float32", "float32")

    def as_dict(self) -> dict[str, Any]:
        """Return section -> key -> value, for a run's record."""
        return dataclasses.asdict(self)
