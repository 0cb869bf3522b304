"""Tokens and completions that are left out because trainer and engine, or policy and sampler, are too far apart.

Sources: `compute_rollout_rejection_mask` of verl 0.9.1 (`rollout_rs`); `PolicyLoss` of OpenRLHF 0.11.2; the off-policy
sequence mask of DeepSeek-V3.2 as `get_off_policy_mask` of TRL 1.16.0 has it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from grpo_core.wide import WideLossConfig


def within(
    proximal: torch.Tensor, behaviour: torch.Tensor, mask_BT: torch.Tensor, options: WideLossConfig
) -> torch.Tensor:
    """True at the tokens that stay, by `loss.reject`; what is left out counts in no normaliser. [B, T].

    >>> from grpo_core.wide import WideLossConfig
    >>> apart = torch.tensor([[0.0, 2.0], [0.0, 0.1]])
    >>> options, all_of_it = WideLossConfig(reject="seq_mean_k2", reject_high=0.5), torch.ones(2, 2, dtype=torch.bool)
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
    proximal: torch.Tensor, behaviour: torch.Tensor, mask_BT: torch.Tensor, options: WideLossConfig
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
