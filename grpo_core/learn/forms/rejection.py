"""Tokens and completions that are left out because trainer and engine, or policy and sampler, are too far apart.

Sources: `compute_rollout_rejection_mask` of verl 0.9.1 (`rollout_rs`); the off-policy sequence mask of DeepSeek-V3.2 as
`get_off_policy_mask` of TRL 1.16.0 has it.
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
