"""The trainer's settings: what there is, what it means, and which values are allowed.

Read from TOML, overridden by `--section.key VALUE`. `python -m grpo_core train --help-settings` prints this file's
documentation of every key.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any


class ConfigError(ValueError):
    """Raised when a setting is unknown, malformed or contradicts another; one line, for people."""


class RecordError(RuntimeError):
    """Raised when a recorded step is missing, torn, altered or not in the format."""


def key(
    default: Any,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    choices: Any = None,
) -> Any:
    """A field with its default and its allowed values: at least `low`, more than `above`, at most `high`."""
    return field(default=default, metadata={"low": low, "above": above, "high": high, "choices": choices})


SURROGATES = (
    "clip", "cispo", "sapo", "vespo", "dppo_tv", "dppo_kl", "clip_cov", "kl_cov", "geo_mean", "moved", "dro",
)  # fmt: skip
REJECTIONS = tuple(
    f"{level}_{estimator}"
    for level in ("token", "seq_sum", "seq_mean", "seq_max")
    for estimator in ("k1", "k2", "k3")
    if (level, estimator) != ("seq_max", "k1")
)

GATES = ("token_kl", "token_tv", "sequence_ratio", "sequence_kl", "sequence_tv")
TYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class TaskConfig:
    """The task: rows made on the spot, with a reward computed from the text."""

    kind: str = key("repeat", choices=("repeat", "reverse"))
    """What is asked of a word: write it again, or write it backwards. Not used where data.path is set."""
    letters: str = key("abcdefghij")
    """The letters words are made of."""
    min_length: int = key(3, low=1)
    """Shortest word."""
    max_length: int = key(3, low=1)
    """Longest word."""


@dataclass(frozen=True)
class DataConfig:
    """The user's own prompts, instead of the shipped task's."""

    path: str = key("")
    """A file of JSON lines, a Parquet file, or a folder that Hugging Face datasets wrote with `save_to_disk`;
    empty: the shipped task."""
    split: str = key("")
    """The split of a folder that holds several."""
    prompt: str = key("prompt")
    """The column that is the prompt: a text, or a list of chat messages. All others go to reward functions."""
    template: str = key("auto", choices=("auto", "chat", "none"))
    """Whether prompts go through the tokenizer's chat template; `auto`: lists of messages do, texts don't."""
    max_prompt_tokens: int = key(0, low=0)
    """Longest prompt; 0: what model.max_length leaves beside sampling.max_tokens."""
    over_limit: str = key("drop", choices=("drop", "truncate", "error"))
    """A longer prompt is dropped, loses its first tokens, or ends the run; how many is counted."""
    shuffle: bool = key(default=True)
    """Draw rows in a new order each epoch, seeded by train.seed; false: in the file's order."""


@dataclass(frozen=True)
class RewardConfig:
    """What a completion is worth: a weighted sum of functions, and penalties."""

    functions: tuple[str, ...] = key(())
    """Names of built-in functions, or `file.py:function`; empty: the shipped task's own."""
    weights: tuple[float, ...] = key(())
    """One a function; empty: 1 each."""
    model: str = key("")
    """A folder with a sequence classification model, whose score is one more function; empty: none."""
    overlong_buffer: int = key(0, low=0)
    """Soft overlong penalty (DAPO): the last tokens before sampling.max_tokens cost linearly more; 0: none."""
    overlong_penalty: float = key(1.0, low=0)
    """What a completion of full length costs."""
    threads: int = key(1, low=1)
    """Functions that are called at the same time, each in a thread of its own; 1: one after another."""
    convention: str = key("text", choices=("text", "trl"))
    """What functions are called with. `text`: prompts and completions as texts with their special tokens. `trl`: as TRL
    calls them, without special tokens, and as lists of messages where the data's prompts are messages."""


@dataclass(frozen=True)
class ModelConfig:
    """The model that is trained."""

    path: str = key("")
    """A folder with a transformers checkpoint and tokenizer; empty: a tiny Llama is made, seeded, in a second."""
    hidden_size: int = key(64, low=32)
    """Width of the tiny model; heads are 32 wide (vLLM's CPU kernels refuse 16), so a multiple of 32."""
    layers: int = key(1, low=1)
    """Layers of the tiny model."""
    max_length: int = key(256, low=4)
    """Longest prompt and completion together, in tokens."""
    lora_rank: int = key(0, low=0)
    """Train low-rank adapters of this rank (by peft) instead of the weights; 0: the weights."""
    lora_alpha: float = key(16.0, above=0)
    """Adapters count alpha / rank times."""
    lora_targets: tuple[str, ...] = key(("all-linear",))
    """Names of the layers that get adapters."""
    gradient_checkpointing: bool = key(default=False)
    """Compute activations again in the backward pass instead of keeping them."""
    dtype: str = key("float32", choices=TYPES)
    """What the trainer computes in. Weights, gradients and the optimizer stay in float32."""
    float32_parts: tuple[str, ...] = key(("head", "norms"))
    """Of a lower dtype: what is computed in float32 nevertheless, of head and norms."""
    loss_scale: float = key(1024.0, above=0)
    """Of float16: what the gradient is multiplied by on its way through the model."""


@dataclass(frozen=True)
class RolloutConfig:
    """Where completions come from."""

    mode: str = key("colocate", choices=("colocate", "async", "server"))
    """`colocate`: trainer and engine take turns in this process. `async`: the engine works ahead in its own
    process. `server`: the engine is behind HTTP."""
    engine: str = key("transformers", choices="engines")
    """What samples; in server mode, what the server that is started for the run samples with."""
    max_staleness: int = key(1, low=0)
    """Async only: by how many policy versions a token may be older than the policy it trains. 0 waits for
    every update and gives the same numbers as colocate."""
    server: str = key("auto", choices=("auto", "grpo-core", "vllm", "trl"))
    """Server mode: what answers there: `python -m grpo_core serve`, `vllm serve` or `trl vllm-serve`; anything else is
    refused by name. `auto`: whichever it is."""
    host: str = key("127.0.0.1")
    """Server mode: the server's host."""
    port: int = key(0, low=0)
    """Server mode: the port of a running server; 0 starts one on a free port of this machine, for this run.
    Of `serve`: the port to listen at, 0 for a free one."""
    token_file: str = key("")
    """A file with the server's token, where GRPO_CORE_TOKEN is not set; `serve` makes it if it is not there. Empty:
    a server on loopback keeps its token in the user's cache, where a trainer of the same user finds it."""
    timeout_s: float = key(120.0, above=0)
    """Seconds an engine in another process, or a server, may take to start or to answer one call."""
    device: str = key("auto")
    """Torch device of the engine's model. `auto`: the trainer's device in colocate mode; in async and server mode the
    first GPU that the trainer does not use, else the trainer's own."""
    memory_share: float = key(0.45, above=0, high=0.95)
    """Async and server mode, with trainer and engine on one GPU: the share of its memory that the engine may use.
    The trainer may use the rest."""
    max_batch: int = key(256, low=1)
    """Completions that the embedded engine samples at one time."""
    partial_tokens: int = key(0, low=0)
    """Async only: a completion that isn't finished after this many tokens goes on under the next policy version;
    0: each is finished under the version it began with."""
    on_update: str = key("wait", choices=("wait", "abort"))
    """Of `serve`: when weights arrive while a call samples, the update waits for its end, or ends it (`abort`)."""
    sync: str = key("auto", choices=("auto", "inline", "shm", "http", "files"))
    """How weights go to the engine; `auto`: the fastest way that the engine has. See docs/sync.md, and for other
    servers docs/servers.md."""
    reconnect_s: float = key(0.0, low=0)
    """Server mode: for how long a server of its own address that went away is looked for again."""
    sync_tolerance: float = key(0.0, low=0)
    """Largest log-prob difference between engine and trainer, on a probe after each weight update, that counts as
    rounding. 0: by the less exact type of trainer and engine: 0.001 for float32, 0.05 for float16, 0.2 for bfloat16."""
    dtype: str = key("auto", choices=("auto", *TYPES))
    """What the engine holds and computes in; weights are sent in it. `auto`: model.dtype; float32 for a server that
    runs already."""


@dataclass(frozen=True)
class SamplingConfig:
    """How completions are sampled."""

    group_size: int = key(16, low=2)
    """Completions per prompt: what an advantage is relative to."""
    max_tokens: int = key(6, low=1)
    """Longest completion, in tokens."""
    temperature: float = key(1.0, low=0.01)
    """Logits are divided by it, when sampling and when training."""
    dynamic: bool = key(default=False)
    """Dynamic sampling (DAPO): groups whose rewards are all equal are replaced by groups of further prompts."""
    max_resample_times: int = key(3, low=1)
    """Further batches of prompts that a step may sample; then it is filled with groups without a signal."""
    overlong_filter: bool = key(default=False)
    """Completions cut off at max_tokens get a reward, but no gradient."""


@dataclass(frozen=True)
class TrainConfig:
    """The optimizer and what it is fed."""

    steps: int = key(300, low=1)
    """Rollout batches to train on."""
    prompts_per_step: int = key(16, low=1)
    """Prompts in a rollout batch."""
    micro_batch: int = key(256, low=1)
    """Completions in one forward and backward pass; gradients add up over a batch."""
    iterations: int = key(1, low=1)
    """Optimizer updates on each rollout batch."""
    learning_rate: float = key(1.5e-3, above=0)
    """Of AdamW, after the warm-up."""
    warmup_updates: int = key(10, low=0)
    """Updates over which the learning rate rises linearly to its value."""
    weight_decay: float = key(0.0, low=0)
    """Weight decay of AdamW."""
    max_grad_norm: float = key(1.0, above=0)
    """Gradients are scaled down to this norm."""
    seed: int = key(0, low=0)
    """Of the tiny model, the task's rows and every sample."""
    threads: int = key(1, low=1)
    """Threads of torch, in the trainer and in an engine; part of what makes runs bit-identical."""
    device: str = key("auto")
    """Torch device of the trained model. `auto`: a GPU if there is one (under torchrun one for each process), else the
    CPU."""
    logprob_chunk: int = key(256, low=1)
    """Positions whose logits exist at one time."""
    sharding: str = key("replicate", choices=("replicate", "fsdp2"))
    """Under torchrun: every process holds the whole policy, or its share of it (PyTorch's FSDP2)."""
    stall_s: float = key(0.0, low=0)
    """Nothing done for so long: the stacks of all threads are written to stalls.txt; 0: not watched."""
    stall_look: bool = key(default=False)
    """Then `grpo-doctor hang` looks from outside, too, at the run and all below it; it writes to hang.txt."""
    mini_batches: int = key(1, low=1)
    """Optimizer updates into which each pass over a rollout batch is divided (verl's train_batch_size /
    ppo_mini_batch_size, TRL's steps_per_generation / gradient_accumulation_steps). Ratios are to the policy before the
    first of them."""
    mini_batch_normaliser: str = key("mini_batch", choices=("mini_batch", "rollout"))
    """Whose tokens and completions a mini-batch's loss is divided by: its own (as verl 0.9), or the whole rollout's
    divided by the number of mini-batches (as TRL's dapo from 1.9.1 on)."""
    scheduler: str = key("constant", choices=("constant", "linear", "cosine"))
    """What becomes of the learning rate behind the warm-up, up to the run's last update: transformers' schedules."""
    final_rate: float = key(0.0, low=0)
    """The share of the learning rate that a schedule ends at."""
    beta1: float = key(0.9, low=0)
    """Of AdamW; below 1."""
    beta2: float = key(0.95, low=0)
    """Of AdamW; below 1."""
    epsilon: float = key(1e-8, above=0)
    """Of AdamW: what its divisors are raised by."""

    @property
    def updates(self) -> int:
        """Optimizer updates on each rollout batch."""
        return self.iterations * self.mini_batches


@dataclass(frozen=True)
class LossConfig:
    """The loss; see `grpo_core.learn.losses`."""

    dialect: str = key("")
    """Another trainer's loss, as verl-0.9.1/grpo (see grpo_core/learn/dialects.py): the keys of this section that are
    not set have its values."""
    advantage_baseline: str = key(
        "group",
        choices=("group", "leave_one_out", "batch", "none", "length", "best_other"),
    )
    """What is subtracted from a reward: the mean of its group, of the others of its group, of the batch, or 0.
    `length`: the mean of its group weighed by lengths (OPO). `best_other`: only the best of a group counts, by how far
    it is above the second (pass@k)."""
    advantage_scale: str = key("group", choices=("group", "leave_one_out", "batch", "none"))
    """What the difference is divided by: the standard deviation of the rewards of its group, of the others of its
    group, of the batch, or 1. Rewards that don't deviate divide by 1, too."""
    advantage_ddof: int = key(1, choices=(0, 1))
    """1: the deviation divides by n - 1, as torch does. 0: by n, as numpy does."""
    advantage_epsilon: float = key(1e-4, low=0)
    """Added to the deviation."""
    ratio: str = key("token", choices=("token", "sequence", "sequence_token"))
    """Ratio current / proximal of each token, or the geometric mean over a sequence's tokens (GSPO).
    `sequence_token`: the value of `sequence`, with a gradient for each token of its own (verl's gspo)."""
    surrogate: str = key("clip", choices=SURROGATES)
    """`clip`: PPO's clipped ratio. `cispo`: the ratio, clipped and without gradient, times the log-prob. `sapo`: a
    sigmoid of the ratio. `vespo`, `dppo_tv`, `dppo_kl`, `clip_cov`, `kl_cov`, `geo_mean` (GMPO), `moved` (prime-rl),
    `dro`: see grpo_core/learn/losses.py."""
    clip_low: float = key(0.2, low=0)
    """The ratio current / proximal is clipped at 1 minus this; 1: not from below."""
    clip_high: float = key(0.2, low=0)
    """The ratio current / proximal is clipped at 1 plus this."""
    ratio_cap: float = key(0.0, low=0)
    """Cap of the ratio where it is not clipped (TRL's delta); 0: none."""
    dual_clip: float = key(0.0, low=0)
    """A token of negative advantage A costs at most this times -A; above 1, or 0: no bound."""
    log_ratio_limit: float = key(0.0, low=0)
    """The log of the ratio is clamped to plus or minus this before it is exponentiated; 0: not."""
    sapo_temperature_positive: float = key(1.0, above=0)
    """SAPO's temperature where the advantage is positive."""
    sapo_temperature_negative: float = key(1.05, above=0)
    """SAPO's temperature elsewhere."""
    kl_coefficient: float = key(0.0, low=0)
    """Weight of the KL to the model before training; 0 keeps no reference model."""
    kl_placement: str = key("loss", choices=("loss", "reward"))
    """The KL is added to the loss, or its sum over a completion is taken off the reward."""
    kl_estimator: str = key("k3", choices=("k1", "k2", "k3"))
    """Schulman's estimators."""
    kl_importance: bool = key(default=False)
    """Multiply the KL estimate by the ratio, which unbiases its gradient after the first update of a step."""
    kl_log_ratio_limit: float = key(0.0, low=0)
    """The log of reference / current is clamped to plus or minus this before KL is estimated; 0: not."""
    kl_limit: float = key(0.0, low=0)
    """A token's KL estimate is clamped to plus or minus this; 0: not."""
    entropy_quantile: float = key(0.0, low=0)
    """The share of the step's tokens, those of lowest entropy, that get no gradient but that of the KL; below 1,
    0: none."""
    aggregation: str = key("token", choices=("token", "sequence", "sequence_sum", "constant", "token_sum"))
    """What weighs the same: every token of the batch, every sequence's mean, every sequence's sum, or every place
    up to max_tokens. `token_sum`: every token weighs 1."""
    correction: str = key("truncate", choices=("none", "truncate", "mask"))
    """Importance correction for the mismatch between trainer and engine, and for staleness: weights out of bounds
    are moved to the bound, or set to 0."""
    correction_level: str = key("token", choices=("token", "sequence"))
    """The correction's weight of each token, or the product over a sequence's tokens."""
    correction_cap: float = key(2.0, low=1)
    """Upper bound of the correction's weights."""
    correction_floor: float = key(0.0, low=0)
    """Lower bound of the correction's weights; 0: none."""
    advantage_deviation: str = key("rewards", choices=("rewards", "differences"))
    """What the scale is the deviation of: rewards, or rewards less the baseline (ms-swift's reinforce_plus_plus)."""
    advantage_rewards: str = key("sum", choices=("sum", "each"))
    """The sum of the rewards becomes an advantage, or each reward does, and their weighted sum is divided by its
    deviation over the batch (GDPO; TRL's normalize_then_sum)."""
    advantage_whiten: str = key("none", choices=("none", "tokens"))
    """`tokens`: at last the advantages of all tokens of the step are centred and divided by their deviation
    (REINFORCE++)."""
    vespo_power_positive: float = key(2.0, above=0)
    """vespo's k where the advantage is not negative."""
    vespo_rate_positive: float = key(3.0, above=0)
    """vespo's lambda there."""
    vespo_power_negative: float = key(3.0, above=0)
    """vespo's k elsewhere."""
    vespo_rate_negative: float = key(2.0, above=0)
    """vespo's lambda there."""
    cov_share: float = key(0.0002, above=0)
    """clip_cov, kl_cov: the share of a step's tokens that the covariance chooses."""
    cov_low: float = key(1.0)
    """clip_cov: tokens are chosen where the covariance is above this."""
    cov_high: float = key(5.0)
    """clip_cov: and below this."""
    cov_kl: float = key(1.0, low=0)
    """kl_cov: weight of |log ratio| at the chosen tokens."""
    quadratic: float = key(0.001, low=0)
    """moved: weight of the squared log-ratio at all tokens (prime-rl's kl_tau). dro: beta / 2."""
    entropy_coefficient: float = key(0.0)
    """The mean entropy of the step's tokens, times this, is taken off the loss."""
    correction_gate: str = key("none", choices=("none", *GATES))
    """With correction = mask: what must be within bounds for a token to keep its weight. Of the token or, as a mean,
    of its completion: the ratio (correction_floor to correction_cap), the KL between two coins, or how far the
    probability is from the engine's (OpenRLHF's is_correction). What is left out still counts in the normaliser."""
    gate_limit: float = key(0.1, above=0)
    """Upper bound of `kl` and `tv`."""
    off_policy_limit: float = key(0.0, low=0)
    """A completion of negative advantage is left out where the mean of behaviour - current over its tokens is above
    this
    (DeepSeek-V3.2; TRL's off_policy_mask_threshold); 0: none is."""
    reject: str = key("none", choices=("none", *REJECTIONS))
    """Tokens or completions whose mismatch between trainer and engine is out of bounds are left out: which estimate,
    over what (verl's rollout_rs). k1 = log(behaviour / proximal) has two bounds, k2 and k3 the upper one."""
    reject_low: float = key(0.5, above=0)
    """Lower bound, as a ratio; of k1 alone."""
    reject_high: float = key(2.0, above=0)
    """Upper bound: of k1 as a ratio, of k2 and k3 as they are."""


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation during training, pinned to one policy version."""

    every: int = key(0, low=0)
    """Every this many steps, before the step trains; 0: never."""
    prompts: int = key(64, low=1)
    """Prompts, the same each time, one completion each."""
    temperature: float = key(1.0, low=0.01)
    """Of these completions."""
    path: str = key("")
    """A data set of its own, read like data.path; empty: rows of the shipped task that training never draws. Of a
    folder that save_to_disk wrote with several splits, name the split's own folder."""


@dataclass(frozen=True)
class CheckpointConfig:
    """What makes a killed run go on, exactly."""

    every: int = key(1, low=0)
    """Every this many steps (and at the last) everything is saved; 0: never."""
    keep: int = key(1, low=1)
    """Newest checkpoints kept."""


@dataclass(frozen=True)
class OutputConfig:
    """What is written down."""

    dir: str = key("runs")
    """Folder of all runs."""
    name: str = key("")
    """Folder of this run below it; empty: the rollout mode and the time. A run of this name that has made a
    step is gone on with (--resume) or refused, never overwritten."""
    completions_every: int = key(10, low=0)
    """The completions of the first step, of every so many behind it, and of the last are written; 0: none."""
    record_every: int = key(0, low=0)
    """The first step's rollout, every so many behind it, and the last are recorded in full, for `replay`; 0: none."""
    tensorboard: bool = key(default=False)
    """Write metrics for TensorBoard, too."""
    wandb: bool = key(default=False)
    """Write metrics for Weights & Biases, too, offline."""
    page: bool = key(default=False)
    """Without effect: no page is written any more. The key is read, as settings of earlier runs have it."""


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    task: TaskConfig = field(default_factory=TaskConfig)
    data: DataConfig = field(default_factory=DataConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    output: OutputConfig = field(default_factory=OutputConfig)

    @property
    def engine_dtype(self) -> str:
        """The type the engine holds. `auto` is the trainer's type, or float32 for a server that runs already."""
        if self.rollout.dtype != "auto":
            return self.rollout.dtype
        runs_already = self.rollout.mode == "server" and self.rollout.port != 0
        return "float32" if runs_already else self.model.dtype

    @property
    def lowered(self) -> bool:
        """Whether trainer or engine computes in another type than float32."""
        return (self.model.dtype, self.engine_dtype) != ("float32", "float32")

    def as_dict(self) -> dict[str, Any]:
        """Section -> key -> value, for a run's own record."""
        return dataclasses.asdict(self)


LOOPBACK = ("127.0.0.1", "localhost", "::1")
