"""Advantages: how much better a sample was than those it is compared to."""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from grpo_core.config import LossConfig
    from grpo_core.types import Group

    Rewards = Sequence[Sequence[float]]  # of each group's samples


def group_advantages(
    rewards: Rewards, *, baseline: str = "group", scale: str = "group", ddof: int = 1, epsilon: float = 1e-4
) -> tuple[tuple[float, ...], ...]:
    """(reward - baseline) / (deviation + epsilon), where there is a deviation to divide by.

    Rewards that are all equal have their common value as mean, exactly, and no deviation: the difference is
    left as it is, zero or not, since dividing by epsilon alone would make a signal out of rounding. A group of one is
    such a case: it gets 0 with a `group` or `leave_one_out` baseline (its own reward), and otherwise its
    reward less the mean of the batch, or its reward; only the `batch` scale divides it.

    Args:
        rewards: One sequence a group, each with at least one reward.
        baseline: What is taken off: the mean of the `group`, of the others of it (`leave_one_out`; RLOO, arXiv
            2402.14740), of the `batch`, or `none`.
        scale: Whose standard deviation divides the difference, by the same names.
        ddof: 1 divides the squares by n - 1, as torch does, 0 by n, as numpy does.
        epsilon: Added to the deviation.

    Returns:
        One tuple a group, one number a sample.

    >>> group_advantages([[0.0, 1.0], [1.0, 1.0]], scale="none")
    ((-0.5, 0.5), (0.0, 0.0))
    >>> group_advantages([[0.0, 1.0, 1.0]], baseline="leave_one_out", scale="none")
    ((-1.0, 0.5, 0.5),)
    """
    means = _per_sample(rewards, baseline, _mean)
    deviations = _per_sample(rewards, scale, lambda peers: _deviation(peers, ddof))
    return tuple(
        tuple(
            (reward - mean) / (deviation + epsilon if deviation else 1.0)
            for reward, mean, deviation in zip(*row, strict=True)
        )
        for row in zip(rewards, means, deviations, strict=True)
    )


def configured(options: LossConfig) -> dict[str, Any]:
    """What `group_advantages` is to do by these settings."""
    return {key: getattr(options, f"advantage_{key}") for key in ("baseline", "scale", "ddof", "epsilon")}


def judged(groups: Sequence[Group], options: LossConfig) -> list[Group]:
    """The groups with the advantages that these settings make of their rewards."""
    advantages = group_advantages([group.rewards for group in groups], **configured(options))
    return [group.having("advantage", row) for group, row in zip(groups, advantages, strict=True)]


def _per_sample(
    rewards: Rewards, peers: str, statistic: Callable[[Sequence[float]], float]
) -> list[list[float]]:
    """The statistic of each sample's peers, in the shape of the rewards; 0 without peers."""
    if peers == "none":
        return [[0.0] * len(group) for group in rewards]
    if peers == "batch":
        whole = statistic([reward for group in rewards for reward in group])
        return [[whole] * len(group) for group in rewards]
    if peers == "group":
        return [[statistic(group)] * len(group) for group in rewards]
    return [
        [statistic([*group[:place], *group[place + 1 :]] or group) for place in range(len(group))]
        for group in rewards
    ]


# Added up by fsum: the same bits in any order, and in any Python (sum is compensated from 3.12 on). Compared before
# anything is subtracted: the mean of equal floats may differ from them in the last digit.
def _mean(rewards: Sequence[float]) -> float:
    return rewards[0] if min(rewards) == max(rewards) else fsum(rewards) / len(rewards)


def _deviation(rewards: Sequence[float], ddof: int) -> float:
    if len(rewards) == 1 or min(rewards) == max(rewards):  # one that is NaN does not equal itself
        return 0.0
    mean = _mean(rewards)
    return float((fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - ddof)) ** 0.5)
