"""The KL to the model before training: estimated per token, in the loss or taken off the reward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from grpo_core.config import LossConfig


def kl_estimate(
    current: torch.Tensor,
    reference: torch.Tensor,
    estimator: str,
    *,
    log_ratio_limit: float = 0.0,
    limit: float = 0.0,
) -> torch.Tensor:
    """Per-token estimate of KL(current || reference) on tokens sampled from current, by Schulman's names.

    k1 is unbiased and may be negative; k2 is biased and positive; k3 is unbiased and positive. Unbiased
    holds for the value: the gradient of k1 used as a loss is zero in expectation.

    A limit clamps the log-ratio, or the estimate, and where it binds there is no gradient; 0: none. verl, EasyR1 and
    ms-swift limit their k3 to 20 and 10, NeMo-RL every estimator.
    """
    log_ratio = reference - current
    if log_ratio_limit:
        log_ratio = log_ratio.clamp(-log_ratio_limit, log_ratio_limit)
    estimate = _schulman(log_ratio, estimator)
    return estimate.clamp(-limit, limit) if limit else estimate


def _schulman(log_ratio: torch.Tensor, estimator: str) -> torch.Tensor:
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio**2
    return log_ratio.exp() - log_ratio - 1


def completion_kl(
    proximal_BT: torch.Tensor, reference_BT: torch.Tensor, mask_BT: torch.Tensor, options: LossConfig
) -> torch.Tensor:
    """The KL estimate against the reference, summed over each completion. [B], no gradient.

    With `kl_placement = "reward"`, `kl_coefficient` times this is taken off a completion's reward before advantages
    are computed, as `apply_kl_penalty` of verl 0.9.1 and `kl_in_reward` of ms-swift 4.6.0 do.
    """
    kl = masked_kl(proximal_BT.detach(), reference_BT.detach(), mask_BT, options)
    return (kl * mask_BT).sum(1)


def masked_kl(
    current: torch.Tensor, reference: torch.Tensor, mask_BT: torch.Tensor, options: LossConfig
) -> torch.Tensor:
    """The estimate as configured, per token; what stands behind a completion's end has no influence, be it NaN."""
    zeros = torch.zeros_like(current)
    return kl_estimate(
        torch.where(mask_BT, current, zeros),
        torch.where(mask_BT, reference, zeros),
        options.kl_estimator,
        log_ratio_limit=options.kl_log_ratio_limit,
        limit=options.kl_limit,
    )
