"""The policy loss: one loss per token with orthogonal switches, and three log-prob streams.

| stream    | numbers                                            | used for                               |
|-----------|----------------------------------------------------|----------------------------------------|
| behaviour | the engine's, sent with the completion             | correcting for trainer/engine mismatch |
| proximal  | the trainer's before the first update of the step  | the ratio that is clipped              |
| current   | the trainer's now; the only stream with a gradient | everything                             |

Shapes: B samples, T tokens of the longest completion; padding is at the end and is masked by length.

Sources: PPO (arXiv 1707.06347), clip-higher (DAPO, 2503.14476), dual clip (1912.09729), TRL's delta (`ratio_cap`),
CISPO (2506.13585), GSPO (2507.18071), GMPO (2507.20673), DPPO (2602.04879); SAPO, VESPO as in TRL 1.16.0; Clip-Cov,
KL-Cov and DRO as in verl 0.9.1; `moved` is the default loss of prime-rl 0.8.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from grpo_core.config import LossConfig


@dataclass(frozen=True)
class Streams:
    """The log-probs that the current ones are compared with; each [B, T], none with a gradient."""

    behaviour: torch.Tensor
    proximal: torch.Tensor
    reference: torch.Tensor | None = None


@dataclass(frozen=True)
class PolicyLoss:
    """A part of a step's loss, and sums over its tokens (to be divided by the step's token count).

    Attributes:
        value: Scalar with a gradient; the parts of a step add up to its loss.
        kl_sum: Sum of the KL estimate against the reference; 0 without a reference.
        clipped: Tokens whose gradient the clip cut off.
        ratio_sum: Sum of the ratio current / proximal.
    """

    value: torch.Tensor
    kl_sum: float
    clipped: int
    ratio_sum: float


def token_weights(mask_BT: torch.Tensor, aggregation: str, max_tokens: int) -> torch.Tensor:
    """Compute the share of each token in the loss of a whole optimizer step; zero where masked. [B, T].

    Computed over the whole accumulation window before it is split. With a normaliser per micro-batch, the weight of a
    token depends on the other samples in its micro-batch: the fault behind trl#6024 and ms-swift#10117.

    Args:
        mask_BT: True at real tokens.
        aggregation: `token`: all tokens weigh the same. `sequence`: all sequences do. `sequence_sum`: a token
            weighs 1 / B. `constant`: a token weighs 1 / (B * max_tokens), whatever the lengths. `token_sum`: 1.
        max_tokens: The longest completion that was allowed.
    """
    mask = mask_BT.to(torch.get_default_dtype())
    samples = mask.shape[0]
    if aggregation == "token":
        return mask / mask.sum().clamp(min=1)
    if aggregation == "sequence":
        return mask / (mask.sum(1, keepdim=True).clamp(min=1) * samples)
    if aggregation in ("sequence_sum", "token_sum"):
        return mask / (samples if aggregation == "sequence_sum" else 1)
    return mask / (samples * max_tokens)


def masked(stream: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return a stream with zeros where masked: set before any exp, as 0 * inf is NaN, in the gradient too."""
    return torch.where(mask_BT, stream, torch.zeros_like(stream))


def _sequence_mean(values: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Compute the mean over the real tokens of each sequence. [B, 1]."""
    return (values * mask_BT).sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True).clamp(min=1)


def importance_weights(
    proximal: torch.Tensor, behaviour: torch.Tensor, mask_BT: torch.Tensor, options: LossConfig
) -> torch.Tensor:
    """Compute bounded weights proximal / behaviour, which correct for the engine's numbers. [B, T] or [B, 1]."""
    log_weight = masked(proximal - behaviour, mask_BT).detach()
    if options.correction_level == "sequence":
        log_weight = log_weight.sum(1, keepdim=True)
    weight = log_weight.exp()
    bounded = weight.clamp(min=options.correction_floor, max=options.correction_cap)
    if options.correction == "mask":
        return torch.where(bounded == weight, weight, torch.zeros_like(weight))
    return bounded


def gated_importance_weights(
    proximal: torch.Tensor, behaviour: torch.Tensor, mask_BT: torch.Tensor, options: LossConfig
) -> torch.Tensor:
    """Compute token weights proximal / behaviour, 0 where `loss.correction_gate` is out of bounds. [B, T]."""
    level, _, kind = options.correction_gate.rpartition("_")
    log_weight = masked(proximal - behaviour, mask_BT).detach()
    statistic = log_weight
    if kind != "ratio":
        p, q = (stream.detach().exp().clamp(1e-6, 1 - 1e-6) for stream in (behaviour, proximal))
        kl = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
        statistic = (p - q).abs() if kind == "tv" else kl
    if level == "sequence":
        statistic = _sequence_mean(statistic, mask_BT)
    ratio = statistic.exp()
    within_ratio = (ratio >= options.correction_floor) & (ratio <= options.correction_cap)
    passes = within_ratio if kind == "ratio" else statistic <= options.gate_limit
    return torch.where(passes, log_weight.exp(), torch.zeros_like(log_weight))


def ratios(
    current: torch.Tensor, proximal: torch.Tensor, mask_BT: torch.Tensor, options: LossConfig
) -> torch.Tensor:
    """Compute the ratio current / proximal: of each token [B, T], or a sequence's geometric mean [B, 1] (GSPO).

    `sequence_token` has the value of `sequence`, and the gradient of each token's own log-prob.
    """
    log_ratio = current - proximal
    if options.ratio != "token":
        log_ratio = _sequence_mean(log_ratio, mask_BT)
    if options.ratio == "sequence_token":
        log_ratio = current - current.detach() + log_ratio.detach()
    limit = options.log_ratio_limit
    return (log_ratio.clamp(-limit, limit) if limit else log_ratio).exp()


@dataclass(frozen=True)
class Terms:
    """The input of a surrogate; log-probs are zero where masked, and only `current` and `ratio` have a gradient."""

    current: torch.Tensor
    proximal: torch.Tensor
    behaviour: torch.Tensor
    ratio: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor

    def weights(self, options: LossConfig) -> torch.Tensor:
        """Compute the weights of the correction, as configured."""
        return importance_weights(self.proximal, self.behaviour, self.mask, options)


Surrogate = Callable[[Terms, LossConfig], tuple[torch.Tensor, torch.Tensor]]
_LEAST = math.log(1e-8)


def _nothing_clipped(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like, dtype=torch.bool)


def clip(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO: the smaller of ratio * A and clipped ratio * A, with an optional cap of the free ratio and dual clip."""
    ratio, advantages = terms.ratio, terms.advantages
    capped = ratio.clamp(max=options.ratio_cap) if options.ratio_cap else ratio
    free = capped * advantages
    bounded = ratio.clamp(1 - options.clip_low, 1 + options.clip_high) * advantages
    value = torch.minimum(free, bounded)
    if options.dual_clip:
        value = torch.where(advantages < 0, torch.maximum(value, options.dual_clip * advantages), value)
    return value, bounded < free


def cispo(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """CISPO: the ratio, clipped and without gradient, times A log pi."""
    low, high = 1 - options.clip_low, 1 + options.clip_high
    ratio = terms.ratio
    value = ratio.clamp(low, high).detach() * terms.advantages * terms.current
    return value, (ratio > high) & (terms.advantages > 0)


def sapo(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """SAPO: a sigmoid of the ratio, with one temperature for each sign of the advantage, times A."""
    positive, negative = options.sapo_temperature_positive, options.sapo_temperature_negative
    temperature = torch.where(terms.advantages > 0, positive, negative)
    gate = torch.sigmoid(temperature * (terms.ratio - 1)) * 4 / temperature
    return gate * terms.advantages, _nothing_clipped(gate)


def vespo(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """VESPO: phi(w) A log pi with phi(w) = e^lambda w^k e^(-lambda w); w is the product of the sequence's ratios.

    The weights of the correction are part of w and are not applied again.
    """
    log_ratio = (terms.current - terms.proximal).detach().clamp(-20.0, 20.0)
    log_w = (log_ratio * terms.mask).sum(1, keepdim=True)
    if options.correction != "none":
        logs = terms.weights(options).log().clamp(_LEAST, 20.0)
        if options.correction_level == "token":
            logs = masked(logs, terms.mask)
        log_w = log_w + logs.sum(1, keepdim=True)
    log_w = log_w.clamp(_LEAST, 20.0)
    good = terms.advantages >= 0
    power = torch.where(good, options.vespo_power_positive, options.vespo_power_negative)
    rate = torch.where(good, options.vespo_rate_positive, options.vespo_rate_negative)
    phi = torch.exp(rate + power * log_w - rate * log_w.exp()).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return phi * terms.advantages * terms.current, _nothing_clipped(terms.current)


def dppo_tv(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """DPPO: the detached ratio times A log pi, where the probability moved by at most the clip's bounds."""
    moved = (terms.current.exp() - terms.proximal.exp()).detach()
    valid = torch.where(terms.advantages > 0, moved <= options.clip_high, moved >= -options.clip_low)
    return _trust_region(terms, valid, options)


def dppo_kl(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """DPPO by the KL between two Bernoulli distributions: this token is sampled, or it is not."""
    now, before = terms.current.detach().exp(), terms.proximal.exp()
    rest = torch.log((1.0 - before + 1e-8) / (1.0 - now + 1e-8))
    kl = before * (terms.proximal - terms.current.detach()) + (1 - before) * rest
    above = (kl <= options.clip_high) | (now <= before)
    below = (kl <= options.clip_low) | (now >= before)
    return _trust_region(terms, torch.where(terms.advantages > 0, above, below), options)


def _trust_region(
    terms: Terms, valid: torch.Tensor, options: LossConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    ratio = terms.ratio.detach()
    capped = ratio.clamp(max=options.ratio_cap) if options.ratio_cap else ratio
    return capped * terms.advantages * terms.current * valid, ~valid


def moved(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """prime-rl: the ratio to the engine's log-probs, minus the squared log-ratio.

    Only the latter remains at tokens whose probability moved beyond the clip's bounds in the advantage's direction.
    """
    log_ratio = terms.current - terms.behaviour
    distance = (terms.current.exp() - terms.behaviour.exp()).detach()
    out = torch.where(terms.advantages > 0, distance > options.clip_high, distance < -options.clip_low)
    return log_ratio.exp() * terms.advantages * ~out - options.quadratic * log_ratio**2, out


def dro(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """DRO: A log pi minus the squared log-ratio."""
    squared = (terms.current - terms.proximal) ** 2
    return terms.advantages * terms.current - options.quadratic * squared, _nothing_clipped(terms.current)


def geo_mean(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """GMPO: A times the geometric mean of a sequence's ratios, each clipped in its log; equal at all its tokens."""
    log_ratio, sign = terms.current - terms.proximal, terms.advantages.sign()
    clamped = log_ratio.clamp(-options.clip_low, options.clip_high)
    least = sign * torch.minimum(sign * log_ratio, sign * clamped)
    gain = terms.advantages * _sequence_mean(least, terms.mask).exp()
    if options.correction != "none":  # by the geometric mean of its weights, too
        logs = (terms.weights(options) + 1e-10).log().expand_as(log_ratio)
        gain = gain * _sequence_mean(logs, terms.mask).exp()
    return gain.expand_as(log_ratio), least != log_ratio


def clip_cov(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Clip-Cov: the clip without a few random tokens of high covariance of advantage and log-prob."""
    bounded = terms.ratio.clamp(1 - options.clip_low, 1 + options.clip_high) * terms.advantages
    free = terms.ratio * terms.advantages
    covariance = _covariance(terms)
    candidates = (covariance > options.cov_low) & (covariance < options.cov_high) & terms.mask
    places = (candidates & ~(bounded < free)).nonzero()
    count = max(int(options.cov_share * int(terms.mask.sum())), 1)
    # Seeded by the number of candidates alone: the same step selects the same tokens again.
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(len(places)))
    dropped = places[order[:count].to(places.device)]
    factor = torch.ones_like(terms.ratio)
    factor[dropped[:, 0], dropped[:, 1]] = 0
    return torch.minimum(free, bounded) * factor, (factor == 0) | (bounded < free)


def kl_cov(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """KL-Cov: no clip; |log ratio| is subtracted at the tokens of highest covariance of advantage and log-prob."""
    log_ratio = terms.current - terms.proximal
    covariance = _covariance(terms)[terms.mask]
    count = max(1, int(options.cov_share * len(covariance)))
    highest = torch.zeros_like(covariance, dtype=torch.bool)
    highest[torch.topk(covariance, count).indices] = True
    penalised = torch.zeros_like(terms.mask).masked_scatter(terms.mask, highest)
    gain = terms.ratio * terms.advantages - options.cov_kl * log_ratio.abs() * penalised
    return gain, _nothing_clipped(gain)


def _covariance(terms: Terms) -> torch.Tensor:
    """Compute (A - its mean) (log pi - its mean), over the tokens of a step."""
    advantages, current = terms.advantages.expand_as(terms.current), terms.current.detach()
    means = advantages[terms.mask].mean(), current[terms.mask].mean()
    return (advantages - means[0]) * (current - means[1])


# Each returns the value that is maximised per token, and where a bound cut off the gradient; both [B, T].
SURROGATES: dict[str, Surrogate] = {
    surrogate.__name__: surrogate
    for surrogate in (clip, cispo, sapo, vespo, dppo_tv, dppo_kl, moved, dro, geo_mean, clip_cov, kl_cov)
}
# These apply the weights of the correction themselves.
CORRECTED = ("vespo", "geo_mean")


def accepted_tokens(
    proximal: torch.Tensor, behaviour: torch.Tensor, mask_BT: torch.Tensor, options: LossConfig
) -> torch.Tensor:
    """Return True at tokens within the bounds of `loss.reject`; the others count in no normaliser. [B, T].

    >>> from grpo_core.config import LossConfig
    >>> difference = torch.tensor([[0.0, 2.0], [0.0, 0.1]])
    >>> options, mask = LossConfig(reject="seq_mean_k2", reject_high=0.5), torch.ones(2, 2, dtype=torch.bool)
    >>> accepted_tokens(difference, torch.zeros(2, 2), mask, options).tolist()
    [[False, False], [True, True]]
    """
    level, _, estimator = options.reject.rpartition("_")
    distance = masked(proximal - behaviour, mask_BT).detach().clamp(-20.0, 20.0)
    statistic = {"k1": -distance, "k2": 0.5 * distance**2, "k3": distance.exp() - 1.0 - distance}[estimator]
    if level == "seq_max":
        statistic = statistic.masked_fill(~mask_BT, -math.inf).max(1, keepdim=True).values
    elif level == "seq_mean":
        statistic = _sequence_mean(statistic, mask_BT)
    elif level == "seq_sum":
        statistic = (statistic * mask_BT).sum(1, keepdim=True)
    low, high = -math.inf, options.reject_high
    if estimator == "k1":
        low, high = math.log(options.reject_low), math.log(options.reject_high)
    return mask_BT & (statistic >= low) & (statistic <= high)


def on_policy_mask(
    current: torch.Tensor, behaviour: torch.Tensor, advantages: torch.Tensor, mask_BT: torch.Tensor, limit: float
) -> torch.Tensor:  # fmt: skip
    """Return False where A < 0 and the sequence's mean of behaviour - current is above the limit. [B, 1].

    Masked sequences still count in the normaliser, as in TRL.
    """
    return (advantages >= 0) | (_sequence_mean(behaviour - current.detach(), mask_BT) <= limit)


def kl_estimate(
    current: torch.Tensor, reference: torch.Tensor, estimator: str, *,
    log_ratio_limit: float = 0.0, limit: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    """Estimate KL(current || reference) per token, on tokens sampled from current, by Schulman's names.

    k1 is unbiased and may be negative; k2 is biased and positive; k3 is unbiased and positive. Unbiased
    holds for the value: the gradient of k1 used as a loss is zero in expectation.

    A limit clamps the log-ratio, or the estimate, and where it binds there is no gradient; 0: none. verl, EasyR1 and
    ms-swift limit their k3 to 20 and 10, NeMo-RL every estimator.
    """
    log_ratio = reference - current
    if log_ratio_limit:
        log_ratio = log_ratio.clamp(-log_ratio_limit, log_ratio_limit)
    if estimator == "k1":
        estimate = -log_ratio
    elif estimator == "k2":
        estimate = 0.5 * log_ratio**2
    else:
        estimate = log_ratio.exp() - log_ratio - 1
    return estimate.clamp(-limit, limit) if limit else estimate


def masked_kl(
    current: torch.Tensor, reference: torch.Tensor, mask_BT: torch.Tensor, options: LossConfig
) -> torch.Tensor:
    """Estimate the KL per token, as configured; values after the end of a completion have no influence, even NaN."""
    limits = {"log_ratio_limit": options.kl_log_ratio_limit, "limit": options.kl_limit}
    return kl_estimate(masked(current, mask_BT), masked(reference, mask_BT), options.kl_estimator, **limits)


def completion_kl(
    proximal_BT: torch.Tensor, reference_BT: torch.Tensor, mask_BT: torch.Tensor, options: LossConfig
) -> torch.Tensor:
    """Sum the KL estimate against the reference over each completion. [B], no gradient.

    With `kl_placement = "reward"`, `kl_coefficient` times this is subtracted from a completion's reward before
    advantages are computed, as `apply_kl_penalty` of verl 0.9.1 and `kl_in_reward` of ms-swift 4.6.0 do.
    """
    return (masked_kl(proximal_BT.detach(), reference_BT.detach(), mask_BT, options) * mask_BT).sum(1)


def policy_loss(
    current_BT: torch.Tensor,
    streams: Streams,
    advantages: torch.Tensor,
    mask_BT: torch.Tensor,
    weights_BT: torch.Tensor,
    options: LossConfig,
    learned_BT: torch.Tensor | None = None,
    entropy_BT: torch.Tensor | None = None,
) -> PolicyLoss:
    """Compute the surrogate per token, plus the KL to a reference, weighed by `token_weights`.

    Args:
        current_BT: The trainer's log-probs, with gradient.
        streams: The other log-probs.
        advantages: One per sample [B], or one per token [B, T].
        mask_BT: True at real tokens; values elsewhere have no influence, even NaN.
        weights_BT: This part's rows of the whole step's `token_weights`.
        options: Ratio, surrogate, KL and correction.
        learned_BT: True where the surrogate counts, from the whole step's `entropy_mask`; None: at all real tokens. The
            others still count in `weights_BT`, in a sequence's ratio and in the KL, as in TRL 1.16.0.
        entropy_BT: With gradient, where `entropy_coefficient` is set. It weighs as the loss does, as in verl 0.9.1.
    """
    current, proximal = masked(current_BT, mask_BT), masked(streams.proximal, mask_BT)
    behaviour = masked(streams.behaviour, mask_BT)
    gains = masked(advantages, mask_BT) if advantages.dim() > 1 else advantages[:, None]
    ratio = ratios(current, proximal, mask_BT, options)
    terms = Terms(current, proximal, behaviour, ratio, gains, mask_BT)
    gain, clipped = SURROGATES[options.surrogate](terms, options)
    if options.correction != "none" and options.surrogate not in CORRECTED:
        weigh = importance_weights if options.correction_gate == "none" else gated_importance_weights
        gain = gain * weigh(proximal, behaviour, mask_BT, options)
    if options.off_policy_limit:
        gain = gain * on_policy_mask(current, behaviour, gains, mask_BT, options.off_policy_limit)
    per_token = -gain if learned_BT is None else -gain * learned_BT
    kl_sum = 0.0
    if streams.reference is not None:
        kl = masked_kl(current, streams.reference, mask_BT, options)
        kl_sum = float((kl * mask_BT).sum().detach())
        if options.kl_placement == "loss":
            per_token = per_token + options.kl_coefficient * (kl * ratio if options.kl_importance else kl)
    if entropy_BT is not None and options.entropy_coefficient:
        per_token = per_token - options.entropy_coefficient * masked(entropy_BT, mask_BT)
    return PolicyLoss(
        value=(per_token * weights_BT).sum(),
        kl_sum=kl_sum,
        clipped=int((clipped & mask_BT).sum()),
        ratio_sum=float((ratio * mask_BT).sum().detach()),
    )
