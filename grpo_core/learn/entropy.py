"""Learning from the tokens of high entropy alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
def keep_above(window: Sequence[Any], score: Callable[[Any], Any], quantile: float, world: World) -> None:
    """Has micro-batches learn from tokens of high entropy, by a threshold over the whole step: so in a pass of its own.

    Args:
        window: This process's micro-batches (`update.Part`), whose `learned_BT` is set.
        score: Gives the log-probs and entropies [b, T] of their rows.
        quantile: The share that is left out.
        world: All processes.
    """
    found = [(score(part.rows)[1][part.kept_BT].tolist(), part.kept_BT) for part in window]
    shares = world.gather([value for values, _ in found for value in values])
    everyone = torch.tensor([value for share in shares for value in share])
    learned = entropy_mask(everyone, torch.ones_like(everyone, dtype=torch.bool), quantile)
    mine = learned[sum(map(len, shares[: world.rank])) :]
    counts = [len(values) for values, _ in found]
    rest = mine[: sum(counts)].split(counts)
    for part, values in zip(window, rest, strict=True):
        kept_BT = part.kept_BT
        part.learned_BT = torch.zeros_like(kept_BT).masked_scatter(kept_BT, values.to(kept_BT.device))
