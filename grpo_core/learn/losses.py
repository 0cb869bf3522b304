"""Compute the policy loss from log-prob streams: a weighted sum of one loss per token.

`policy_loss` computes it, with the weights of `token_weights`. Settings choose ratio, surrogate, importance correction,
KL to the reference, and the weights of tokens.

| stream    | numbers                                            | used for                               |
|-----------|----------------------------------------------------|----------------------------------------|
| behaviour | the engine's, sent with the completion             | correcting for trainer/engine mismatch |
| proximal  | the trainer's before the first update of the step  | the ratio that is clipped              |
| current   | the trainer's now; the only stream with a gradient | the ratio, the KL, and CISPO           |
| reference | the model's before training; optional              | the KL                                 |

Shapes: B samples, T tokens of the longest completion. The caller's mask leaves out padding, which is at the end, and
samples without a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_core.config import LossConfig


@dataclass(frozen=True)
class Streams:
    """The log-probs that the current ones are compared with; each [B, T], without gradient."""

    behaviour: Tensor
    proximal: Tensor
    reference: Tensor | None = None


@dataclass(frozen=True)
class PolicyLoss:
    """One micro-batch's part of a step's loss, with sums over its unmasked tokens.

    Attributes:
        value: Scalar with a gradient; the parts of a step add up to its loss.
        kl_sum: Sum of the KL estimate against the reference; 0 without a reference.
        clipped: Number of tokens that the surrogate counts as clipped.
        ratio_sum: Sum of the ratio current / proximal.
    """

    value: Tensor
    kl_sum: float
    clipped: int
    ratio_sum: float


def token_weights(mask_BT: Tensor, aggregation: str, max_tokens: int) -> Tensor:
    """Compute each token's weight in the loss of a whole optimizer step; zero where masked. [B, T].

    Call it for the whole accumulation window before the window is split. With a normaliser per micro-batch, the weight
    of a token depends on the other samples in its micro-batch: the fault behind trl#6024 and ms-swift#10117.

    Args:
        mask_BT: True at real tokens.
        aggregation: `token`: all tokens have equal weight. `sequence`: all sequences have equal weight.
            `sequence_sum`: a token has weight 1 / B. `constant`: a token has weight 1 / (B * max_tokens). B also counts
            samples whose tokens are all masked.
        max_tokens: The longest completion that was allowed.
    """
    mask = mask_BT.to(torch.get_default_dtype())
    samples = mask.shape[0]
    if aggregation == "token":
        return mask / mask.sum().clamp(min=1)
    if aggregation == "sequence":
        return mask / (mask.sum(1, keepdim=True).clamp(min=1) * samples)
    return mask / (samples if aggregation == "sequence_sum" else samples * max_tokens)


def masked(stream: Tensor, mask_BT: Tensor) -> Tensor:
    """Return a stream with zeros where masked; must precede any exp, because 0 * inf is NaN, in gradients too."""
    return torch.where(mask_BT, stream, torch.zeros_like(stream))


def ratios(current: Tensor, proximal: Tensor, mask_BT: Tensor, options: LossConfig) -> Tensor:
    """Compute the ratio current / proximal: of each token [B, T], or a sequence's geometric mean [B, 1].

    `sequence` is GSPO (arXiv 2507.18071). `sequence_token` has its value, and the gradient of each token's log-prob.
    `log_ratio_limit` clamps the log-ratio.
    """
    log_ratio = current - proximal
    if options.ratio != "token":
        log_ratio = (log_ratio * mask_BT).sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True).clamp(min=1)
    if options.ratio == "sequence_token":
        log_ratio = current - current.detach() + log_ratio.detach()
    limit = options.log_ratio_limit
    return (log_ratio.clamp(-limit, limit) if limit else log_ratio).exp()


def importance_weights(proximal: Tensor, behaviour: Tensor, mask_BT: Tensor, options: LossConfig) -> Tensor:
    """Compute weights proximal / behaviour, which correct for the engine's numbers. [B, T] or [B, 1].

    Weights outside of the bounds are clamped, or set to 0 with the correction `mask`.
    """
    log_weight = masked(proximal - behaviour, mask_BT).detach()
    if options.correction_level == "sequence":
        log_weight = log_weight.sum(1, keepdim=True)
    weight = log_weight.exp()
    bounded = weight.clamp(min=options.correction_floor, max=options.correction_cap)
    if options.correction == "mask":
        return torch.where(bounded == weight, weight, torch.zeros_like(weight))
    return bounded


# Surrogates. Each computes the objective per token, and a mask of clipped tokens; [B, T] each. `clip` counts tokens
# whose gradient the clipping removes, but not those limited by `dual_clip` or `ratio_cap`; `cispo` counts tokens of
# positive advantage above the upper bound; `sapo` counts none. Arguments: the ratio current / proximal, [B, T] or
# [B, 1]; log-probs, zero where masked, [B, T]; the advantage of each sample, [B, 1].


def clip(ratio: Tensor, _: Tensor, advantages: Tensor, options: LossConfig) -> tuple[Tensor, Tensor]:
    """Compute PPO's clipped surrogate (arXiv 1707.06347): the smaller of ratio * A and clipped ratio * A.

    Separate bounds are DAPO's clip-higher (2503.14476). `dual_clip` limits the loss of a negative advantage
    (1912.09729), `ratio_cap` the ratio where it is not clipped (TRL's delta).
    """
    capped = ratio.clamp(max=options.ratio_cap) if options.ratio_cap else ratio
    free = capped * advantages
    bounded = ratio.clamp(1 - options.clip_low, 1 + options.clip_high) * advantages
    value = torch.minimum(free, bounded)
    if options.dual_clip:
        value = torch.where(advantages < 0, torch.maximum(value, options.dual_clip * advantages), value)
    return value, bounded < free


def cispo(ratio: Tensor, current: Tensor, advantages: Tensor, options: LossConfig) -> tuple[Tensor, Tensor]:
    """Compute CISPO's surrogate (arXiv 2506.13585): the ratio, clipped and without gradient, times A log pi."""
    low, high = 1 - options.clip_low, 1 + options.clip_high
    return ratio.clamp(low, high).detach() * advantages * current, (ratio > high) & (advantages > 0)


def sapo(ratio: Tensor, _: Tensor, advantages: Tensor, options: LossConfig) -> tuple[Tensor, Tensor]:
    """Compute SAPO's surrogate (TRL 1.16.0): a sigmoid of the ratio, with a temperature per sign of A, times A."""
    positive, negative = options.sapo_temperature_positive, options.sapo_temperature_negative
    temperature = torch.where(advantages > 0, positive, negative)
    gate = torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature
    return gate * advantages, torch.zeros_like(gate, dtype=torch.bool)


SURROGATES = {"clip": clip, "cispo": cispo, "sapo": sapo}


def kl_estimate(current: Tensor, reference: Tensor, mask_BT: Tensor, options: LossConfig) -> Tensor:
    """Estimate KL(current || reference) per token, on tokens sampled from current, by Schulman's k1, k2 or k3. [B, T].

    k1 is unbiased and may be negative; k2 is biased and never negative; k3 is unbiased and never negative. This is
    about the value: the gradient of k1 used as a loss is zero in expectation.

    `kl_log_ratio_limit` clamps the log-ratio and `kl_limit` the estimate; clamped values have no gradient. verl, EasyR1
    and ms-swift limit only k3 (to 20 and 10), NeMo-RL each estimator. Masked values have no influence, even NaN.
    """
    log_ratio = masked(reference, mask_BT) - masked(current, mask_BT)
    if limit := options.kl_log_ratio_limit:
        log_ratio = log_ratio.clamp(-limit, limit)
    if options.kl_estimator == "k1":
        estimate = -log_ratio
    elif options.kl_estimator == "k2":
        estimate = 0.5 * log_ratio**2
    else:
        estimate = log_ratio.exp() - log_ratio - 1
    return estimate.clamp(-options.kl_limit, options.kl_limit) if options.kl_limit else estimate


def policy_loss(
    current_BT: Tensor,
    streams: Streams,
    advantages_B: Tensor,
    mask_BT: Tensor,
    weights_BT: Tensor,
    options: LossConfig,
) -> PolicyLoss:
    """Compute the loss: minus the corrected surrogate, plus the KL to a reference, both weighted by `token_weights`.

    Args:
        current_BT: The trainer's log-probs, with gradient.
        streams: The other log-probs.
        advantages_B: Advantage of each sample.
        mask_BT: True at real tokens; values elsewhere have no influence, even NaN.
        weights_BT: This part's rows of the whole step's `token_weights`.
        options: Ratio, surrogate, KL and correction.
    """
    current, proximal = masked(current_BT, mask_BT), masked(streams.proximal, mask_BT)
    ratio = ratios(current, proximal, mask_BT, options)
    gain, clipped = SURROGATES[options.surrogate](ratio, current, advantages_B[:, None], options)
    if options.correction != "none":
        gain = gain * importance_weights(proximal, streams.behaviour, mask_BT, options)
    per_token, kl_sum = -gain, 0.0
    if streams.reference is not None:
        kl = kl_estimate(current, streams.reference, mask_BT, options)
        kl_sum = float((kl * mask_BT).sum().detach())
        per_token = per_token + options.kl_coefficient * (kl * ratio if options.kl_importance else kl)
    clipped_tokens, ratio_sum = int((clipped & mask_BT).sum()), float((ratio * mask_BT).sum().detach())
    return PolicyLoss((per_token * weights_BT).sum(), kl_sum, clipped_tokens, ratio_sum)
