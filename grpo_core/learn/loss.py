"""The policy loss: one per-token core with orthogonal switches, and three log-prob streams never mixed up.

| stream    | whose numbers                                        | what for                                   |
|-----------|------------------------------------------------------|--------------------------------------------|
| behaviour | the engine's, sent with the completion               | correcting for trainer/engine mismatch     |
| proximal  | the trainer's before the first update of the step    | the ratio that is clipped                  |
| current   | the trainer's now; the only stream with a gradient   | everything                                 |

Shapes: B samples, T tokens of the longest completion; padding stands at the end and is masked by length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from grpo_core.config import LossConfig


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


def kept(stream: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
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
    """Importance ratio current / proximal: of each token [B, T], or a sequence's geometric mean [B, 1] (GSPO)."""
    log_ratio = current - proximal
    if options.ratio != "token" or options.log_ratio_limit:
        from grpo_core.learn.surrogates import limited

        log_ratio = limited(log_ratio, current, mask_BT, options)
    return log_ratio.exp()


def surrogate(
    ratio: torch.Tensor, advantages: torch.Tensor, current: torch.Tensor, options: LossConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """What is maximised, per token, and where the clip cut the gradient off.

    Sources: PPO (arXiv 1707.06347), clip-higher in DAPO (2503.14476), the dual clip (1912.09729); the cap of the free
    branch is `delta` of TRL 1.16.0. Others than the clip are in `surrogates`.
    """
    low, high = 1 - options.clip_low, 1 + options.clip_high
    if options.surrogate != "clip":
        from grpo_core.learn.surrogates import SURROGATES

        return SURROGATES[options.surrogate](ratio, advantages, current, options)
    capped = ratio.clamp(max=options.ratio_cap) if options.ratio_cap else ratio
    free, bounded = capped * advantages, ratio.clamp(low, high) * advantages
    value = torch.minimum(free, bounded)
    if options.dual_clip:
        value = torch.where(advantages < 0, torch.maximum(value, options.dual_clip * advantages), value)
    return value, bounded < free


def policy_loss(
    current_BT: torch.Tensor, streams: Streams, advantages_B: torch.Tensor, mask_BT: torch.Tensor,
    weights_BT: torch.Tensor, options: LossConfig, learned_BT: torch.Tensor | None = None,
) -> PolicyLoss:  # fmt: skip
    """The surrogate per token, plus KL to a reference, weighed by `token_weights`.

    Args:
        current_BT: The trainer's log-probs, with gradient.
        streams: The other log-probs.
        advantages_B: One a sample.
        mask_BT: True at real tokens; what stands elsewhere has no influence, be it NaN.
        weights_BT: This part's rows of the whole step's `token_weights`.
        options: Ratio, surrogate, KL and correction; those of `grpo_core.wide` are read in `forms.loss` alone.
        learned_BT: True where the surrogate counts, of the whole step's `entropy_mask`; None: at all real tokens. The
            others still count in `weights_BT`, in a sequence's ratio and in the KL, as in TRL 1.16.0.
    """
    current, proximal = kept(current_BT, mask_BT), kept(streams.proximal, mask_BT)
    ratio = ratios(current, proximal, mask_BT, options)
    gain, cut = surrogate(ratio, advantages_B[:, None], current, options)
    if options.correction != "none":
        gain = gain * importance_weights(proximal, kept(streams.behaviour, mask_BT), mask_BT, options)
    per_token = -gain if learned_BT is None else -gain * learned_BT
    kl_sum = 0.0
    if streams.reference is not None:
        from grpo_core.learn.kl import added

        per_token, kl_sum = added(per_token, current, streams.reference, ratio, mask_BT, options)
    return PolicyLoss(
        value=(per_token * weights_BT).sum(),
        kl_sum=kl_sum,
        clipped=int((cut & mask_BT).sum()),
        ratio_sum=float((ratio * mask_BT).sum().detach()),
    )
