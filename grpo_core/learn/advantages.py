"""Advantages: how much better a sample was than those it is compared to."""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from grpo_core.config import Config, LossConfig
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
    means = by_peers(rewards, baseline, _mean)
    deviations = by_peers(rewards, scale, lambda peers: deviation(peers, ddof))
    return tuple(
        tuple(
            (reward - mean) / (spread + epsilon if spread else 1.0)
            for reward, mean, spread in zip(*row, strict=True)
        )
        for row in zip(rewards, means, deviations, strict=True)
    )


def configured(options: LossConfig) -> dict[str, Any]:
    """What `group_advantages` is to do by these settings."""
    return {key: getattr(options, f"advantage_{key}") for key in ("baseline", "scale", "ddof", "epsilon")}


def judged(groups: Sequence[Group], config: Config) -> list[Group]:
    """The groups with the advantages that these settings make of their rewards."""
    advantages = group_advantages([group.rewards for group in groups], **configured(config.loss))
    return [group.having("advantage", row) for group, row in zip(groups, advantages, strict=True)]


def by_peers(
    rewards: Rewards, peers: str, statistic: Callable[[Sequence[float]], float]
) -> list[list[float]]:
    """The statistic of each sample's peers, in the shape of the rewards; 0 without peers."""
    if peers == "group":
        return [[statistic(group)] * len(group) for group in rewards]
    from grpo_core.learn.baselines import per_sample

    return per_sample(rewards, peers, statistic)


# Added up by fsum: the same bits in any order, and in any Python (sum is compensated from 3.12 on). Compared before
# anything is subtracted: the mean of equal floats may differ from them in the last digit.
def _mean(rewards: Sequence[float]) -> float:
    return rewards[0] if min(rewards) == max(rewards) else fsum(rewards) / len(rewards)


def deviation(rewards: Sequence[float], ddof: int) -> float:
    """The standard deviation; 0, exactly, of rewards that are all equal."""
    if len(rewards) == 1 or min(rewards) == max(rewards):  # one that is NaN does not equal itself
        return 0.0
    mean = _mean(rewards)
    return float((fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - ddof)) ** 0.5)
