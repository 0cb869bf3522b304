"""Advantages: how much better a sample was than the others of its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Advantages:
    """Advantages of one step.

    Attributes:
        values: One list a group, one number a sample, in the order of the rewards.
        zero_variance_groups: Groups whose rewards are all equal: they carry no signal.
    """

    values: tuple[tuple[float, ...], ...]
    zero_variance_groups: int


def group_advantages(
    rewards: Sequence[Sequence[float]],
    *,
    baseline: str = "group",
    scale: str = "group",
    ddof: int = 1,
    epsilon: float = 1e-4,
) -> Advantages:
    """Centres each group's rewards, and divides by their standard deviation where `scale` is `group`.

    A group whose rewards are all equal gets exact zeros. So does a group of one: it has nothing to be
    compared to, and with `ddof=1` its standard deviation would be 0/0.

    Args:
        rewards: One sequence a group.
        scale: `group` or `none`.
        ddof: 1 divides the squares by n - 1, as torch does, 0 by n, as numpy does.
        epsilon: Added to the standard deviation.

    >>> group_advantages([[0.0, 1.0], [1.0, 1.0]], scale="none")
    Advantages(values=((-0.5, 0.5), (0.0, 0.0)), zero_variance_groups=1)
    """
    groups = [_one_group(group, scale, ddof, epsilon) for group in rewards]
    return Advantages(tuple(groups), sum(min(group) == max(group) for group in rewards))


def _one_group(rewards: Sequence[float], scale: str, ddof: int, epsilon: float) -> tuple[float, ...]:
    count = len(rewards)
    # Compared, not subtracted: the mean of equal floats may differ from them in the last digit, and dividing
    # that by epsilon alone would make a signal out of rounding.
    if min(rewards) == max(rewards):
        return (0.0,) * count
    mean = sum(rewards) / count
    centred = [reward - mean for reward in rewards]
    if scale == "none":
        return tuple(centred)
    deviation = (sum(value * value for value in centred) / (count - ddof)) ** 0.5
    return tuple(value / (deviation + epsilon) for value in centred)
