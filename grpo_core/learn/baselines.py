"""Whom a sample is compared to, where that is not its group."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def per_sample(
    rewards: Sequence[Sequence[float]], peers: str, statistic: Callable[[Sequence[float]], float]
) -> list[list[float]]:
    """The statistic of each sample's peers, in the shape of the rewards; 0 without peers.

    >>> per_sample([[1.0, 2.0, 3.0]], "leave_one_out", max)
    [[3.0, 3.0, 2.0]]
    """
    if peers == "none":
        return [[0.0] * len(group) for group in rewards]
    if peers == "batch":
        whole = statistic([reward for group in rewards for reward in group])
        return [[whole] * len(group) for group in rewards]
    return [
        [statistic([*group[:place], *group[place + 1 :]] or group) for place in range(len(group))]
        for group in rewards
    ]
