"""What takes the place of the clip: surrogates by name, read where a setting asks for one.

Each is given the ratio, the advantages, the current log-probs and the settings, all but the last broadcast to [B, T],
and returns what is maximised per token, and where a bound cut the gradient off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from grpo_core.config import LossConfig

    Found = tuple[torch.Tensor, torch.Tensor]
    Surrogate = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, LossConfig], Found]


def cispo(ratio: torch.Tensor, advantages: torch.Tensor, current: torch.Tensor, options: LossConfig) -> Found:
    """The ratio, clipped and without gradient, times the log-prob (MiniMax-M1, arXiv 2506.13585)."""
    low, high = 1 - options.clip_low, 1 + options.clip_high
    return ratio.clamp(low, high).detach() * advantages * current, (ratio > high) & (advantages > 0)


def sapo(ratio: torch.Tensor, advantages: torch.Tensor, current: torch.Tensor, options: LossConfig) -> Found:
    """A sigmoid of the ratio: `loss_type="sapo"` of TRL 1.16.0."""
    del current
    positive, negative = options.sapo_temperature_positive, options.sapo_temperature_negative
    temperature = torch.where(advantages > 0, positive, negative)
    gate = torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature
    return gate * advantages, torch.zeros_like(gate, dtype=torch.bool)


def limited(
    log_ratio: torch.Tensor, current: torch.Tensor, mask_BT: torch.Tensor, options: LossConfig
) -> torch.Tensor:
    """The log-ratio, as configured: a sequence's mean (GSPO), clamped.

    `sequence_token` has the value of `sequence`, and the gradient of each token's own log-prob.
    """
    if options.ratio != "token":
        tokens = mask_BT.sum(1, keepdim=True).clamp(min=1)
        log_ratio = (log_ratio * mask_BT).sum(1, keepdim=True) / tokens
    if options.ratio == "sequence_token":
        log_ratio = current - current.detach() + log_ratio.detach()
    limit = options.log_ratio_limit
    return log_ratio.clamp(-limit, limit) if limit else log_ratio


SURROGATES: dict[str, Surrogate] = {"cispo": cispo, "sapo": sapo}
