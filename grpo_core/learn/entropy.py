"""Learning from the tokens of high entropy alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from grpo_core.machine.world import World


def entropy_mask(entropy_BT: torch.Tensor, mask_BT: torch.Tensor, quantile: float) -> torch.Tensor:
    """True at the real tokens whose entropy is at or above this quantile of all real tokens'. [B, T].

    Source: arXiv 2506.01939; `get_high_entropy_mask` of TRL 1.16.0, with `top_entropy_quantile = 1 - quantile`.
    Called once a step, before it is split: TRL, and ms-swift 4.6.0, take the quantile of each micro-batch, so which
    tokens are trained depends on the company they happen to be in.

    Args:
        entropy_BT: Of the distribution each token was sampled from.
        mask_BT: True at real tokens.
        quantile: The share that is left out, from 0 to 1; the threshold is interpolated linearly.
    """
    if quantile <= 0 or not mask_BT.any():
        return mask_BT
    entropy = entropy_BT.float()
    return mask_BT & (entropy >= torch.quantile(entropy[mask_BT], quantile))


@torch.no_grad()  # type: ignore[untyped-decorator]
def above_quantile(
    parts: Iterable[tuple[torch.Tensor, torch.Tensor]], quantile: float, world: World
) -> list[torch.Tensor]:
    """True at the tokens of high entropy, by a threshold over the whole step: so it needs a pass of its own.

    Args:
        parts: Entropies [b, T] of this process's micro-batches, and where its tokens count.
        quantile: The share that is left out.
        world: All processes.

    Returns:
        One mask [b, T] a micro-batch.
    """
    found = [(entropy_BT[kept_BT].tolist(), kept_BT) for entropy_BT, kept_BT in parts]
    shares = world.gather([value for values, _ in found for value in values])
    everyone = torch.tensor([value for share in shares for value in share])
    learned = entropy_mask(everyone, torch.ones_like(everyone, dtype=torch.bool), quantile)
    mine = learned[sum(map(len, shares[: world.rank])) :]
    counts = [len(values) for values, _ in found]
    rest = mine[: sum(counts)].split(counts)
    return [
        torch.zeros_like(kept_BT).masked_scatter(kept_BT, values.to(kept_BT.device))
        for (_, kept_BT), values in zip(found, rest, strict=True)
    ]
