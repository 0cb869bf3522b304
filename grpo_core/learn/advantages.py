"""Advantages: how much better a sample was than those it is compared to.

OPO, pass@k, GDPO and REINFORCE++ as in verl 0.9.1; `advantage_rewards = "each"` is normalize_then_sum of TRL 1.16.0.
"""

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


def by_peers(
    rewards: Rewards, peers: str, statistic: Callable[[Sequence[float]], float]
) -> list[list[float]]:
    """The statistic of each sample's peers, in the shape of the rewards; 0 without peers.

    >>> by_peers([[1.0, 2.0, 3.0]], "leave_one_out", max)
    [[3.0, 3.0, 2.0]]
    """
    if peers == "group":
        return [[statistic(group)] * len(group) for group in rewards]
    if peers == "none":
        return [[0.0] * len(group) for group in rewards]
    if peers == "batch":
        whole = statistic([reward for group in rewards for reward in group])
        return [[whole] * len(group) for group in rewards]
    return [
        [statistic([*group[:place], *group[place + 1 :]] or group) for place in range(len(group))]
        for group in rewards
    ]


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


def step_advantages(
    rewards: Rewards,
    lengths: Sequence[Sequence[int]],
    options: LossConfig,
    scores: Sequence[tuple[float, Rewards]] = (),
) -> list[list[float]]:
    """The advantages of one step.

    Args:
        rewards: One row a group.
        lengths: Tokens that the model sampled of each completion, in the same shape.
        options: All switches.
        scores: Weight and rewards of each reward function, for `advantage_rewards = "each"`.

    Returns:
        One row a group.
    """
    if options.advantage_rewards == "each":
        found = _of_each(scores, lengths, options)
    else:
        found = _of_sums(rewards, lengths, options)
    if options.advantage_whiten == "tokens":
        found = _whitened(found, lengths)
    return found


def with_advantages(groups: Sequence[Group], config: Config) -> list[Group]:
    """The groups with these advantages."""
    rewards = [group.rewards for group in groups]
    lengths = [[len(sample.completion.ids) for sample in group.samples] for group in groups]
    names = list(groups[0].samples[0].scores)
    given = dict(zip(names, config.reward.weights))  # noqa: B905 - the overlong penalty has none, and counts once
    scores = [
        (given.get(name, 1.0), [[sample.scores[name] or 0.0 for sample in group.samples] for group in groups])
        for name in names
    ]
    found = step_advantages(rewards, lengths, config.loss, scores)
    return [group.having("advantage", row) for group, row in zip(groups, found, strict=True)]


def _of_sums(rewards: Rewards, lengths: Rewards, options: LossConfig) -> list[list[float]]:
    usual = configured(options)
    if options.advantage_baseline == "length":
        means = [
            _weighed(row, tokens) if len(row) > 1 else 0.0
            for row, tokens in zip(rewards, lengths, strict=True)
        ]
        centred = [[reward - mean for reward in row] for row, mean in zip(rewards, means, strict=True)]
        return _scaled(rewards, centred, usual)
    if options.advantage_baseline == "best_other":
        return _scaled(rewards, [_best(row) for row in rewards], usual)
    if options.advantage_deviation == "differences":
        apart = group_advantages(rewards, **{**usual, "scale": "none"})
        return _scaled(apart, apart, usual)
    return [list(row) for row in group_advantages(rewards, **usual)]


def _weighed(row: Sequence[float], tokens: Sequence[float]) -> float:
    if min(row) == max(row):
        return row[0]
    return fsum(r * n for r, n in zip(row, tokens, strict=True)) / fsum(tokens)


def _best(row: Sequence[float]) -> list[float]:
    """How far the best is above the second, at its place; 0 elsewhere.

    >>> _best([0.0, 3.0, 1.0])
    [0.0, 2.0, 0.0]
    """
    second, first = sorted(row)[-2:]
    place = list(row).index(first)
    return [first - second if at == place else 0.0 for at in range(len(row))]


def _scaled(rewards: Rewards, centred: Rewards, usual: dict[str, Any]) -> list[list[float]]:
    """The differences, divided as the core divides."""
    deviations = by_peers(rewards, usual["scale"], lambda peers: deviation(peers, usual["ddof"]))
    return [
        [value / (spread + usual["epsilon"] if spread else 1.0) for value, spread in zip(*row, strict=True)]
        for row in zip(centred, deviations, strict=True)
    ]


def _of_each(
    scores: Sequence[tuple[float, Rewards]], lengths: Rewards, options: LossConfig
) -> list[list[float]]:
    """Each reward's advantages, weighed and added up; then over the deviation of the batch."""
    parts = [(weight, _of_sums(rows, lengths, options)) for weight, rows in scores]
    summed = [
        [fsum(weight * rows[group][place] for weight, rows in parts) for place in range(len(row))]
        for group, row in enumerate(lengths)
    ]
    ddof, epsilon = options.advantage_ddof, options.advantage_epsilon
    found = group_advantages(summed, baseline="batch", scale="batch", ddof=ddof, epsilon=epsilon)
    return [list(row) for row in found]


def _whitened(advantages: Rewards, lengths: Rewards) -> list[list[float]]:
    """Less the mean over all tokens, over their deviation (n - 1): a sample counts once a token."""
    pairs = [
        pair
        for row, tokens in zip(advantages, lengths, strict=True)
        for pair in zip(row, tokens, strict=True)
    ]
    count = fsum(tokens for _, tokens in pairs)
    mean = fsum(value * tokens for value, tokens in pairs) / count
    variance = fsum(tokens * (value - mean) ** 2 for value, tokens in pairs) / max(count - 1, 1)
    return [[(value - mean) / (variance + 1e-8) ** 0.5 for value in row] for row in advantages]
