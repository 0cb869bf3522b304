"""Compute advantages: a sample's reward minus a baseline, divided by a deviation, both chosen in `LossConfig`.

`group_advantages` computes them, and `with_advantages` fills them into samples. Baseline and deviation are of the
group, of the other samples in the group, of the batch, or left out. Equal rewards have exactly their value as mean and
0 as deviation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import fsum

from grpo_core.config import LossConfig
from grpo_core.types import Group, Sample

Rewards = Sequence[Sequence[float]]  # one row per group


def group_advantages(
    rewards: Rewards, *, baseline: str = "group", scale: str = "group", ddof: int = 1, epsilon: float = 1e-4
) -> tuple[tuple[float, ...], ...]:
    """Compute (reward - baseline) / (deviation + epsilon); differences without a deviation are not divided.

    Equal rewards have exactly their common value as mean and exactly 0 as deviation. Then differences are not divided:
    dividing by epsilon alone would turn rounding into a signal. The same applies to a group of one. It gets 0 with a
    `group` or `leave_one_out` baseline, else its reward minus the baseline; only the `batch` scale divides it.

    Args:
        rewards: One sequence per group, each with at least one reward.
        baseline: What is subtracted: the mean of the `group`, of the others in it (`leave_one_out`; RLOO, arXiv
            2402.14740), of the `batch`, or `none`.
        scale: Rewards whose standard deviation divides the difference, by the same names; `none` divides by 1.
        ddof: 1 divides the sum of squares by n - 1, as torch does; 0 by n, as numpy does.
        epsilon: Added to the deviation.

    Returns:
        One tuple per group, one number per sample.

    >>> group_advantages([[0.0, 1.0], [1.0, 1.0]], scale="none")
    ((-0.5, 0.5), (0.0, 0.0))
    >>> group_advantages([[0.0, 1.0, 1.0]], baseline="leave_one_out", scale="none")
    ((-1.0, 0.5, 0.5),)
    """
    means = by_peers(rewards, baseline, mean)
    spreads = by_peers(rewards, scale, lambda peers: deviation(peers, ddof))
    return tuple(
        tuple((reward - m) / (s + epsilon if s else 1.0) for reward, m, s in zip(*rows, strict=True))
        for rows in zip(rewards, means, spreads, strict=True)
    )


def with_advantages(groups: Sequence[Group], options: LossConfig) -> list[Sample]:
    """Return the samples of all groups, in order, with their advantages filled in."""
    advantages = group_advantages(
        [[sample.reward for sample in group] for group in groups],
        baseline=options.advantage_baseline,
        scale=options.advantage_scale,
        ddof=options.advantage_ddof,
        epsilon=options.advantage_epsilon,
    )
    return [
        replace(sample, advantage=advantage)
        for group, row in zip(groups, advantages, strict=True)
        for sample, advantage in zip(group, row, strict=True)
    ]


def by_peers(
    rewards: Rewards, peers: str, statistic: Callable[[Sequence[float]], float]
) -> list[list[float]]:
    """Compute the statistic of each sample's peers (see `baseline` above), in the shape of the rewards.

    The result is 0 for `none`. With `leave_one_out`, a group of one is its own peer.

    >>> by_peers([[1.0, 2.0, 3.0]], "leave_one_out", max)
    [[3.0, 3.0, 2.0]]
    """
    if peers == "group":
        return [[statistic(group)] * len(group) for group in rewards]
    if peers == "none":
        return [[0.0] * len(group) for group in rewards]
    if peers == "batch":
        value = statistic([reward for group in rewards for reward in group])
        return [[value] * len(group) for group in rewards]
    return [
        [statistic([*group[:index], *group[index + 1 :]] or group) for index in range(len(group))]
        for group in rewards
    ]


# fsum gives the same bits in any order and in any Python (sum is compensated from 3.12 on). Rewards are compared before
# anything is subtracted: the mean of equal floats may differ from them in the last digit.
def mean(rewards: Sequence[float]) -> float:
    """Compute the mean; if all rewards are equal, it is exactly their value."""
    return rewards[0] if min(rewards) == max(rewards) else fsum(rewards) / len(rewards)


def deviation(rewards: Sequence[float], ddof: int) -> float:
    """Compute the standard deviation; if all rewards are equal, it is exactly 0."""
    if len(rewards) == 1 or min(rewards) == max(rewards):  # NaN does not equal itself
        return 0.0
    centre = mean(rewards)
    return float((fsum((reward - centre) ** 2 for reward in rewards) / (len(rewards) - ddof)) ** 0.5)
