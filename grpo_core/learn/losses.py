"""The policy loss: one loss per token with orthogonal switches, and three log-prob streams.

| stream    | whose numbers                                      | what for                              |
|-----------|----------------------------------------------------|---------------------------------------|
| behaviour | the engine's, sent with the completion             | correcting for trainer/engine mismatch |
| proximal  | the trainer's before the first update of the step  | the ratio that is clipped             |
| current   | the trainer's now; the only stream with a gradient | everything                            |

Shapes: B samples, T tokens of the longest completion; padding stands at the end and is masked by length.

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
from grpo_core.learn.kl import add_kl


@dataclass(frozen=True)
class Streams:
    """What the current log-probs are compared to; each of shape [B, T], none with a gradient."""

    behaviour: torch.Tensor
    proximal: torch.Tensor
    reference: torch.Tensor | None = None


@dataclass(frozen=True)
class PolicyLoss:
    """A part of a step's loss, and sums over its tokens (to be divided by the step's token count).

    Attributes:
        value: Scalar with a gradient; the parts of a step add up to its loss.
        kl_sum: Of the KL estimate against the reference; 0 without one.
        clipped: Tokens whose gradient was cut off by the clip.
        ratio_sum: Of the ratio current / proximal.
    """

    value: torch.Tensor
    kl_sum: float
    clipped: int
    ratio_sum: float


def token_weights(mask_BT: torch.Tensor, aggregation: str, max_tokens: int) -> torch.Tensor:
    """The share of each token in the loss of a whole optimizer step; zero where masked. [B, T].

    Computed over the whole accumulation window before it is split. A normaliser per micro-batch would weigh a
    token by the company it happens to be in: the fault behind trl#6024 and ms-swift#10117.

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
    """A stream with zeros where masked: replaced before any exp, as 0 * inf is NaN, in the gradient too."""
    return torch.where(mask_BT, stream, torch.zeros_like(stream))


def importance_weights(
    proximal: torch.Tensor, behaviour: torch.Tensor, mask_BT: torch.Tensor, options: LossConfig
) -> torch.Tensor:
    """Bounded weights proximal / behaviour: they undo that another program sampled. [B, T] or [B, 1], no gradient."""
    log_weight = torch.where(mask_BT, proximal - behaviour, torch.zeros_like(proximal)).detach()
    if options.correction_level == "sequence":
        log_weight = log_weight.sum(1, keepdim=True)
    weight = log_weight.exp()
    bounded = weight.clamp(min=options.correction_floor, max=options.correction_cap)
    if options.correction == "mask":
        return torch.where(bounded == weight, weight, torch.zeros_like(weight))
    return bounded


def ratios(
    current: torch.Tensor, proximal: torch.Tensor, mask_BT: torch.Tensor, options: LossConfig
) -> torch.Tensor:
    """Importance ratio current / proximal: of each token [B, T], or a sequence's geometric mean [B, 1] (GSPO).

    `sequence_token` has the value of `sequence`, and the gradient of each token's own log-prob.
    """
    log_ratio = current - proximal
    if options.ratio != "token":
        tokens = mask_BT.sum(1, keepdim=True).clamp(min=1)
        log_ratio = (log_ratio * mask_BT).sum(1, keepdim=True) / tokens
    if options.ratio == "sequence_token":
        log_ratio = current - current.detach() + log_ratio.detach()
    limit = options.log_ratio_limit
    return (log_ratio.clamp(-limit, limit) if limit else log_ratio).exp()


@dataclass(frozen=True)
class Terms:
    """What a surrogate is made of; log-probs are zero where masked, and only `current` and `ratio` have a gradient."""

    current: torch.Tensor
    proximal: torch.Tensor
    behaviour: torch.Tensor
    ratio: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor

    def weights(self, options: LossConfig) -> torch.Tensor:
        """Those of the correction, as configured."""
        return importance_weights(self.proximal, self.behaviour, self.mask, options)


Surrogate = Callable[[Terms, LossConfig], tuple[torch.Tensor, torch.Tensor]]
_LEAST = math.log(1e-8)


def _none(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like, dtype=torch.bool)


def clip(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO: the smaller of ratio * A and clipped ratio * A; optionally a cap of the free ratio, and the dual clip."""
    ratio, advantages = terms.ratio, terms.advantages
    capped = ratio.clamp(max=options.ratio_cap) if options.ratio_cap else ratio
    free = capped * advantages
    bounded = ratio.clamp(1 - options.clip_low, 1 + options.clip_high) * advantages
    value = torch.minimum(free, bounded)
    if options.dual_clip:
        value = torch.where(advantages < 0, torch.maximum(value, options.dual_clip * advantages), value)
    return value, bounded < free


def cispo(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """The ratio, clipped and without gradient, times A log pi."""
    low, high = 1 - options.clip_low, 1 + options.clip_high
    ratio = terms.ratio
    value = ratio.clamp(low, high).detach() * terms.advantages * terms.current
    return value, (ratio > high) & (terms.advantages > 0)


def sapo(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """A sigmoid of the ratio, of a temperature for each sign of the advantage, times A."""
    positive, negative = options.sapo_temperature_positive, options.sapo_temperature_negative
    temperature = torch.where(terms.advantages > 0, positive, negative)
    gate = torch.sigmoid(temperature * (terms.ratio - 1)) * 4 / temperature
    return gate * terms.advantages, _none(gate)


def vespo(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """phi(w) A log pi: w is the ratio's product over the sequence, phi(w) = e^lambda w^k e^(-lambda w).

    The correction's weights are part of w, and weigh nothing else.
    """
    log_ratio = (terms.current - terms.proximal).detach().clamp(-20.0, 20.0)
    log_w = (log_ratio * terms.mask).sum(1, keepdim=True)
    if options.correction != "none":
        logs = terms.weights(options).log().clamp(_LEAST, 20.0)
        if options.correction_level == "token":
            logs = torch.where(terms.mask, logs, torch.zeros_like(log_ratio))
        log_w = log_w + logs.sum(1, keepdim=True)
    log_w = log_w.clamp(_LEAST, 20.0)
    good = terms.advantages >= 0
    power = torch.where(good, options.vespo_power_positive, options.vespo_power_negative)
    rate = torch.where(good, options.vespo_rate_positive, options.vespo_rate_negative)
    phi = torch.exp(rate + power * log_w - rate * log_w.exp()).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return phi * terms.advantages * terms.current, _none(terms.current)


def dppo_tv(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """The detached ratio times A log pi, where the probability has not moved by more than the clip's bounds."""
    moved = (terms.current.exp() - terms.proximal.exp()).detach()
    valid = torch.where(terms.advantages > 0, moved <= options.clip_high, moved >= -options.clip_low)
    return _trusted(terms, valid, options)


def dppo_kl(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, by the KL between two coins: that this token is sampled, and that it is not."""
    now, before = terms.current.detach().exp(), terms.proximal.exp()
    rest = torch.log((1.0 - before + 1e-8) / (1.0 - now + 1e-8))
    kl = before * (terms.proximal - terms.current.detach()) + (1 - before) * rest
    above = (kl <= options.clip_high) | (now <= before)
    below = (kl <= options.clip_low) | (now >= before)
    return _trusted(terms, torch.where(terms.advantages > 0, above, below), options)


def _trusted(terms: Terms, valid: torch.Tensor, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    ratio = terms.ratio.detach()
    capped = ratio.clamp(max=options.ratio_cap) if options.ratio_cap else ratio
    return capped * terms.advantages * terms.current * valid, ~valid


def moved(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """The ratio to the engine's log-probs, less the squared log-ratio.

    Tokens whose probability moved beyond the clip's bounds, the way their advantage points, have the latter alone.
    """
    log_ratio = terms.current - terms.behaviour
    by = (terms.current.exp() - terms.behaviour.exp()).detach()
    out = torch.where(terms.advantages > 0, by > options.clip_high, by < -options.clip_low)
    return log_ratio.exp() * terms.advantages * ~out - options.quadratic * log_ratio**2, out


def dro(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """A log pi, less the squared log-ratio."""
    apart = (terms.current - terms.proximal) ** 2
    return terms.advantages * terms.current - options.quadratic * apart, _none(terms.current)


def geo_mean(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """A times the geometric mean of a sequence's ratios, each clipped in its log (GMPO); the same at all its tokens."""
    log_ratio, sign = terms.current - terms.proximal, terms.advantages.sign()
    clamped = log_ratio.clamp(-options.clip_low, options.clip_high)
    least = sign * torch.minimum(sign * log_ratio, sign * clamped)
    tokens = terms.mask.sum(1, keepdim=True).clamp(min=1)
    gain = terms.advantages * ((least * terms.mask).sum(1, keepdim=True) / tokens).exp()
    if options.correction != "none":  # the weights' geometric mean, too
        logs = (terms.weights(options) + 1e-10).log().expand_as(log_ratio)
        gain = gain * ((logs * terms.mask).sum(1, keepdim=True) / tokens).exp()
    return gain.expand_as(log_ratio), least != log_ratio


def clip_cov(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """The clip, without a few random ones of the tokens whose advantage and log-prob go together most."""
    bounded = terms.ratio.clamp(1 - options.clip_low, 1 + options.clip_high) * terms.advantages
    free = terms.ratio * terms.advantages
    covariance = _covariance(terms)
    within = (covariance > options.cov_low) & (covariance < options.cov_high) & terms.mask & ~(bounded < free)
    places = within.nonzero()
    count = max(int(options.cov_share * int(terms.mask.sum())), 1)
    # Of the number of candidates alone: the same step draws the same tokens again.
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(len(places)))
    taken = places[order[:count].to(places.device)]
    kept = torch.ones_like(terms.ratio)
    kept[taken[:, 0], taken[:, 1]] = 0
    return torch.minimum(free, bounded) * kept, (kept == 0) | (bounded < free)


def kl_cov(terms: Terms, options: LossConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """No clip; where advantage and log-prob go together most, |log ratio| is taken off."""
    log_ratio = terms.current - terms.proximal
    covariance = _covariance(terms)[terms.mask]
    count = max(1, int(options.cov_share * len(covariance)))
    chosen = torch.zeros_like(covariance, dtype=torch.bool)
    chosen[torch.topk(covariance, count).indices] = True
    there = torch.zeros_like(terms.mask).masked_scatter(terms.mask, chosen)
    gain = terms.ratio * terms.advantages - options.cov_kl * log_ratio.abs() * there
    return gain, _none(gain)


def _covariance(terms: Terms) -> torch.Tensor:
    """(A - its mean) (log pi - its mean), over the tokens of a step."""
    advantages, current = terms.advantages.expand_as(terms.current), terms.current.detach()
    means = advantages[terms.mask].mean(), current[terms.mask].mean()
    return (advantages - means[0]) * (current - means[1])


# Name -> what is maximised per token, and where a bound cut the gradient off; both [B, T].
SURROGATES: dict[str, Surrogate] = {
    form.__name__: form
    for form in (clip, cispo, sapo, vespo, dppo_tv, dppo_kl, moved, dro, geo_mean, clip_cov, kl_cov)
}
# These take the correction's weights into themselves.
CORRECTED = ("vespo", "geo_mean")


def within(
    proximal: torch.Tensor, behaviour: torch.Tensor, mask_BT: torch.Tensor, options: LossConfig
) -> torch.Tensor:
    """True at the tokens that stay, by `loss.reject`; what is left out counts in no normaliser. [B, T].

    >>> from grpo_core.config import LossConfig
    >>> apart = torch.tensor([[0.0, 2.0], [0.0, 0.1]])
    >>> options, all_of_it = LossConfig(reject="seq_mean_k2", reject_high=0.5), torch.ones(2, 2, dtype=torch.bool)
    >>> within(apart, torch.zeros(2, 2), all_of_it, options).tolist()
    [[False, False], [True, True]]
    """
    level, _, estimator = options.reject.rpartition("_")
    apart = torch.where(mask_BT, proximal - behaviour, torch.zeros_like(proximal)).detach().clamp(-20.0, 20.0)
    stat = {"k1": -apart, "k2": 0.5 * apart**2, "k3": apart.exp() - 1.0 - apart}[estimator]
    if level == "seq_max":
        stat = stat.masked_fill(~mask_BT, -math.inf).max(1, keepdim=True).values
    elif level != "token":
        stat = (stat * mask_BT).sum(1, keepdim=True)
        if level == "seq_mean":
            stat = stat / mask_BT.sum(1, keepdim=True).clamp(min=1)
    low, high = -math.inf, options.reject_high
    if estimator == "k1":
        low, high = math.log(options.reject_low), math.log(options.reject_high)
    return mask_BT & (stat >= low) & (stat <= high)


def gated(
    proximal: torch.Tensor, behaviour: torch.Tensor, mask_BT: torch.Tensor, options: LossConfig
) -> torch.Tensor:
    """Weights proximal / behaviour of tokens, 0 where `loss.correction_gate` shuts; no gradient. [B, T]."""
    level, _, kind = options.correction_gate.rpartition("_")
    log_weight = torch.where(mask_BT, proximal - behaviour, torch.zeros_like(proximal)).detach()
    stat = log_weight
    if kind != "ratio":
        p, q = (one.detach().exp().clamp(1e-6, 1 - 1e-6) for one in (behaviour, proximal))
        stat = (p - q).abs() if kind == "tv" else p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    if level == "sequence":
        stat = torch.where(mask_BT, stat, torch.zeros_like(stat)).sum(1, keepdim=True)
        stat = stat / mask_BT.sum(1, keepdim=True).clamp(min=1)
    ratio = stat.exp()
    within_ratio = (ratio >= options.correction_floor) & (ratio <= options.correction_cap)
    stays = within_ratio if kind == "ratio" else stat <= options.gate_limit
    return torch.where(stays, log_weight.exp(), torch.zeros_like(log_weight))


def on_policy(
    current: torch.Tensor,
    behaviour: torch.Tensor,
    advantages: torch.Tensor,
    mask_BT: torch.Tensor,
    limit: float,
) -> torch.Tensor:
    """False where the advantage is negative and the sequence's mean of behaviour - current is above the limit. [B, 1].

    What is left out still counts in the normaliser, as in TRL.
    """
    apart = ((behaviour - current.detach()) * mask_BT).sum(1, keepdim=True)
    return (advantages >= 0) | (apart / mask_BT.sum(1, keepdim=True).clamp(min=1) <= limit)


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
    """The surrogate per token, plus KL to a reference, weighed by `token_weights`.

    Args:
        current_BT: The trainer's log-probs, with gradient.
        streams: The other log-probs.
        advantages: One a sample [B], or one a token [B, T].
        mask_BT: True at real tokens; what stands elsewhere has no influence, be it NaN.
        weights_BT: This part's rows of the whole step's `token_weights`.
        options: Ratio, surrogate, KL and correction.
        learned_BT: True where the surrogate counts, of the whole step's `entropy_mask`; None: at all real tokens. The
            others still count in `weights_BT`, in a sequence's ratio and in the KL, as in TRL 1.16.0.
        entropy_BT: With gradient, where `entropy_coefficient` is set. It weighs as the loss does, as in verl 0.9.1.
    """
    current, proximal = masked(current_BT, mask_BT), masked(streams.proximal, mask_BT)
    behaviour = masked(streams.behaviour, mask_BT)
    gains = masked(advantages, mask_BT) if advantages.dim() > 1 else advantages[:, None]
    ratio = ratios(current, proximal, mask_BT, options)
    terms = Terms(current, proximal, behaviour, ratio, gains, mask_BT)
    gain, cut = SURROGATES[options.surrogate](terms, options)
    if options.correction != "none" and options.surrogate not in CORRECTED:
        weigh = importance_weights if options.correction_gate == "none" else gated
        gain = gain * weigh(proximal, behaviour, mask_BT, options)
    if options.off_policy_limit:
        gain = gain * on_policy(current, behaviour, gains, mask_BT, options.off_policy_limit)
    per_token = -gain if learned_BT is None else -gain * learned_BT
    kl_sum = 0.0
    if streams.reference is not None:
        per_token, kl_sum = add_kl(per_token, current, streams.reference, ratio, mask_BT, options)
    if entropy_BT is not None and options.entropy_coefficient:
        per_token = per_token - options.entropy_coefficient * masked(entropy_BT, mask_BT)
    return PolicyLoss(
        value=(per_token * weights_BT).sum(),
        kl_sum=kl_sum,
        clipped=int((cut & mask_BT).sum()),
        ratio_sum=float((ratio * mask_BT).sum().detach()),
    )
