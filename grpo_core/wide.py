"""Settings beside the core's: what few runs need, read where one of them is set.

`settings.load` tries the core's own first; where that refuses a key or a value, it reads these classes in their place,
which have the core's keys and more. The core asks `config.wide` and `loss.wide`, and knows no other name of here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from grpo_core.config import Config, ConfigError, LossConfig, ModelConfig, RolloutConfig, TrainConfig, key

SURROGATES = (
    *(
        "clip",
        "cispo",
        "sapo",
        "vespo",
        "dppo_tv",
        "dppo_kl",
        "clip_cov",
        "kl_cov",
        "geo_mean",
        "moved",
        "dro",
    ),
)
REJECTIONS = tuple(
    f"{level}_{estimator}"
    for level in ("token", "seq_sum", "seq_mean", "seq_max")
    for estimator in ("k1", "k2", "k3")
    if (level, estimator) != ("seq_max", "k1")
)

GATES = ("token_kl", "token_tv", "sequence_ratio", "sequence_kl", "sequence_tv")


@dataclass(frozen=True)
class WideLossConfig(LossConfig):
    """The loss; see `grpo_core.learn.forms`."""

    wide = True

    advantage_baseline: str = key(
        "group",
        choices=("group", "leave_one_out", "batch", "none", "length", "best_other"),
    )
    """Beside the core's: `length`, the mean of its group weighed by lengths (OPO). `best_other`: only the best of a
    group counts, by how far it is above the second (pass@k)."""
    advantage_deviation: str = key("rewards", choices=("rewards", "differences"))
    """What the scale is the deviation of: rewards, or rewards less the baseline (ms-swift's reinforce_plus_plus)."""
    advantage_rewards: str = key("sum", choices=("sum", "each"))
    """The sum of the rewards becomes an advantage, or each reward does, and their weighted sum is divided by its
    deviation over the batch (GDPO; TRL's normalize_then_sum)."""
    advantage_whiten: str = key("none", choices=("none", "tokens"))
    """`tokens`: at last the advantages of all tokens of the step are centred and divided by their deviation
    (REINFORCE++)."""
    ratio: str = key("token", choices=("token", "sequence", "sequence_token"))
    """`sequence_token`: the value of `sequence`, with a gradient for each token of its own (verl's gspo)."""
    surrogate: str = key("clip", choices=SURROGATES)
    """Beside the core's: `vespo`, `dppo_tv`, `dppo_kl`, `clip_cov`, `kl_cov`, `geo_mean` (GMPO), `moved` (prime-rl) and
    `dro`: see grpo_core/learn/forms/surrogates.py."""
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
    aggregation: str = key("token", choices=("token", "sequence", "sequence_sum", "constant", "token_sum"))
    """Beside the core's: `token_sum`, every token weighs 1."""
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


TYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class WideModelConfig(ModelConfig):
    """The model that is trained."""

    dtype: str = key("float32", choices=TYPES)
    """What the trainer computes in. Weights, gradients and the optimizer stay in float32."""
    float32_parts: tuple[str, ...] = key(("head", "norms"))
    """Of a lower dtype: what is computed in float32 nevertheless, of head and norms."""
    loss_scale: float = key(1024.0, above=0)
    """Of float16: what the gradient is multiplied by on its way through the model."""


@dataclass(frozen=True)
class WideRolloutConfig(RolloutConfig):
    """Where completions come from."""

    dtype: str = key("float32", choices=TYPES)
    """What the engine holds and computes in, apart from the trainer's. Weights are sent in it."""


@dataclass(frozen=True)
class WideTrainConfig(TrainConfig):
    """The optimizer and what it is fed."""

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
class WideConfig(Config):
    """All settings of a run that sets one of the above."""

    wide = True

    model: WideModelConfig = field(default_factory=WideModelConfig)
    rollout: WideRolloutConfig = field(default_factory=WideRolloutConfig)
    train: WideTrainConfig = field(default_factory=WideTrainConfig)
    loss: WideLossConfig = field(default_factory=WideLossConfig)

    @property
    def lowered(self) -> bool:
        """Whether trainer or engine is to hold anything but float32."""
        return (self.model.dtype, self.rollout.dtype) != ("float32", "float32")

    def as_dict(self) -> dict[str, Any]:
        """Section -> key -> value; of what is not the core's, only what is set."""
        found, usual = super().as_dict(), dataclasses.asdict(WideConfig())
        core = Config().as_dict()
        return {
            section: {k: v for k, v in table.items() if k in core[section] or v != usual[section][k]}
            for section, table in found.items()
        }


def contradictions(config: Any) -> list[tuple[tuple[str, ...], bool, str]]:
    """The rules between these keys, as in `grpo_core.rules`."""
    loss, train, model, rollout = config.loss, config.train, config.model, config.rollout
    lower = config.lowered
    completions = train.prompts_per_step * config.sampling.group_size
    of_a_step = loss.surrogate in ("clip_cov", "kl_cov")
    corrects = loss.correction != "none"
    return [
        (("loss.surrogate", "train.micro_batch"), of_a_step and train.micro_batch * train.mini_batches < completions,
         f"it chooses among all {completions} completions of a step: they must be one micro-batch"),
        (("loss.surrogate", "loss.correction"), loss.surrogate == "moved" and corrects,
         "its ratio is to the engine's log-probs already; set loss.correction = 'none'"),
        (("loss.surrogate", "loss.correction_level"),
         loss.surrogate == "vespo" and corrects and loss.correction_level != "token",
         "its weights of a sequence are made of those of tokens, as in TRL; set loss.correction_level = 'token'"),
        (("loss.surrogate", "loss.aggregation"), loss.surrogate == "geo_mean" and loss.aggregation != "sequence",
         "a sequence has one value; set loss.aggregation = 'sequence'"),
        (("loss.correction_gate", "loss.correction", "loss.correction_level", "loss.surrogate"),
         loss.correction_gate != "none"
         and ((loss.correction, loss.correction_level) != ("mask", "token") or loss.surrogate in ("vespo", "geo_mean")),
         "it masks weights of tokens; set loss.correction = 'mask' and loss.correction_level = 'token'"),
        (("loss.reject", "loss.reject_low", "loss.reject_high"),
         loss.reject.endswith("k1") and loss.reject_low > loss.reject_high,
         "the lower bound must not be above the upper"),
        (("train.mini_batches", "train.prompts_per_step", "sampling.group_size"), train.mini_batches > completions,
         "there are fewer completions in a step than mini-batches"),
        (("model.float32_parts",), not {*model.float32_parts} <= {"head", "norms"},
         "expected head, norms, both or none"),
        (("model.dtype", "rollout.dtype", "model.lora_rank", "model.gradient_checkpointing", "loss.kl_coefficient"),
         lower and bool(model.lora_rank or model.gradient_checkpointing or loss.kl_coefficient),
         "a lower dtype is not tried with adapters, recomputed activations or a reference model; use float32"),
        (("model.dtype", "loss.entropy_coefficient"), lower and bool(loss.entropy_coefficient),
         "a lower dtype is not tried with an entropy bonus; use float32"),
        (("rollout.dtype", "rollout.mode", "rollout.port"),
         rollout.dtype != "float32" and rollout.mode == "server",
         "a server is started with its own dtype; set rollout.mode to colocate or async"),
        (("train.beta1", "train.beta2"), max(train.beta1, train.beta2) >= 1, "expected numbers below 1"),
        (("train.final_rate",), train.final_rate > 1, "expected a share, at most 1"),
        (("loss.advantage_rewards", "loss.advantage_scale"),
         loss.advantage_rewards == "each" and loss.advantage_scale == "batch",
         "the sum is divided by the batch's deviation; each reward by its group's, or none"),
    ]  # fmt: skip


def widened(config: Config) -> WideConfig:
    """The same settings, of the class that has more keys."""
    if isinstance(config, WideConfig):
        return config
    kinds = {
        "model": WideModelConfig,
        "rollout": WideRolloutConfig,
        "train": WideTrainConfig,
        "loss": WideLossConfig,
    }
    sections = {
        name: kinds[name](**vars(table)) if name in kinds else table for name, table in vars(config).items()
    }
    return WideConfig(**sections)


def loss_config(settings: dict[str, Any]) -> LossConfig:
    """The loss that these keys describe, of the core's class if that has all of them.

    Raises:
        ConfigError: One is unknown, or has a value that is not allowed.
    """
    for kind in (LossConfig, WideLossConfig):
        known = {entry.name: entry.metadata["choices"] for entry in dataclasses.fields(kind)}
        if all(
            name in known and (known[name] is None or value in known[name])
            for name, value in settings.items()
        ):
            return kind(**settings)
    raise ConfigError(f"no loss has these settings: {settings}")
