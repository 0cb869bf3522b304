"""Advantages: a sample's reward relative to its group, by the configured formula.

OPO, pass@k, GDPO and REINFORCE++ follow verl 0.9.1. `advantage_rewards = "each"` is TRL 1.16.0's normalize_then_sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum
from typing import Any

from grpo_core.config import Config, LossConfig
from grpo_core.types import Group

Rewards = Sequence[Sequence[float]]  # one row per group


def group_advantages(
    rewards: Rewards, *, baseline: str = "group", scale: str = "group", ddof: int = 1, epsilon: float = 1e-4
) -> tuple[tuple[float, ...], ...]:
    """Compute (reward - baseline) / (deviation + epsilon); differences without a deviation are not divided.

    Equal rewards have exactly their common value as mean and exactly 0 as deviation. Their difference is not divided:
    dividing by epsilon alone would turn rounding into a signal. The same applies to a group of one. It gets 0 with a
    `group` or `leave_one_out` baseline, else its reward minus the baseline; only the `batch` scale divides it.

    Args:
        rewards: One sequence per group, each with at least one reward.
        baseline: What is subtracted: the mean of the `group`, of the others in it (`leave_one_out`; RLOO, arXiv
            2402.14740), of the `batch`, or `none`.
        scale: Whose standard deviation divides the difference, by the same names.
        ddof: 1 divides the squares by n - 1, as torch does; 0 by n, as numpy does.
        epsilon: Added to the deviation.

    Returns:
        One tuple per group, one number per sample.

    >>> group_advantages([[0.0, 1.0], [1.0, 1.0]], scale="none")
    ((-0.5, 0.5), (0.0, 0.0))
    >>> group_advantages([[0.0, 1.0, 1.0]], baseline="leave_one_out", scale="none")
    ((-1.0, 0.5, 0.5),)
    """
    centred = _subtract(rewards, by_peers(rewards, baseline, _mean))
    return tuple(map(tuple, _divide(centred, rewards, scale, ddof, epsilon)))


def advantage_options(options: LossConfig) -> dict[str, Any]:
    """Return the arguments of `group_advantages` for these settings."""
    return {key: getattr(options, f"advantage_{key}") for key in ("baseline", "scale", "ddof", "epsilon")}


def by_peers(
    rewards: Rewards, peers: str, statistic: Callable[[Sequence[float]], float]
) -> list[list[float]]:
    """Compute the statistic of each sample's peers, in the shape of the rewards; 0 without peers.

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
        [statistic([*group[:place], *group[place + 1 :]] or group) for place in range(len(group))]
        for group in rewards
    ]


# fsum gives the same bits in any order and in any Python (sum is compensated from 3.12 on). Rewards are compared before
# anything is subtracted: the mean of equal floats may differ from them in the last digit.
def _mean(rewards: Sequence[float]) -> float:
    return rewards[0] if min(rewards) == max(rewards) else fsum(rewards) / len(rewards)


def deviation(rewards: Sequence[float], ddof: int) -> float:
    """Compute the standard deviation; exactly 0 if all rewards are equal."""
    if len(rewards) == 1 or min(rewards) == max(rewards):  # NaN does not equal itself
        return 0.0
    mean = _mean(rewards)
    return float((fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - ddof)) ** 0.5)


def _subtract(rewards: Rewards, baselines: Rewards) -> list[list[float]]:
    rows = zip(rewards, baselines, strict=True)
    return [[reward - mean for reward, mean in zip(*row, strict=True)] for row in rows]


def _divide(centred: Rewards, rewards: Rewards, scale: str, ddof: int, epsilon: float) -> list[list[float]]:
    """Divide by the deviation of the rewards, where there is one."""
    deviations = by_peers(rewards, scale, lambda peers: deviation(peers, ddof))
    return [
        [value / (spread + epsilon if spread else 1.0) for value, spread in zip(*row, strict=True)]
        for row in zip(centred, deviations, strict=True)
    ]


def step_advantages(
    rewards: Rewards,
    lengths: Sequence[Sequence[int]],
    options: LossConfig,
    scores: Sequence[tuple[float, Rewards]] = (),
) -> list[list[float]]:
    """Compute the advantages of one step.

    Args:
        rewards: One row per group.
        lengths: Sampled tokens of each completion, in the same shape.
        options: All settings of the loss.
        scores: Weight and rewards of each reward function, for `advantage_rewards = "each"`.

    Returns:
        One row per group.
    """
    if options.advantage_rewards == "each":
        advantages = _each_reward_advantages(scores, lengths, options)
    else:
        advantages = _summed_reward_advantages(rewards, lengths, options)
    return _whiten(advantages, lengths) if options.advantage_whiten == "tokens" else advantages


def with_advantages(groups: Sequence[Group], config: Config) -> list[Group]:
    """Return the groups with their advantages set."""
    rewards = [group.rewards for group in groups]
    lengths = [[len(sample.completion.ids) for sample in group.samples] for group in groups]
    names = list(groups[0].samples[0].scores)
    weights = dict(zip(names, config.reward.weights))  # noqa: B905 - the overlong penalty has no weight, it counts once
    scores = [
        (
            weights.get(name, 1.0),
            [[sample.scores[name] or 0.0 for sample in group.samples] for group in groups],
        )
        for name in names
    ]
    advantages = step_advantages(rewards, lengths, config.loss, scores)
    return [group.with_values("advantage", row) for group, row in zip(groups, advantages, strict=True)]


def _summed_reward_advantages(rewards: Rewards, lengths: Rewards, options: LossConfig) -> list[list[float]]:
    if options.advantage_baseline == "length":
        rows = zip(rewards, lengths, strict=True)
        means = [[_length_weighted_mean(row, tokens)] * len(row) for row, tokens in rows]
        centred, source = _subtract(rewards, means), rewards
    elif options.advantage_baseline == "best_other":
        centred, source = [_lead_of_best(row) for row in rewards], rewards
    else:
        centred = _subtract(rewards, by_peers(rewards, options.advantage_baseline, _mean))
        source = centred if options.advantage_deviation == "differences" else rewards
    return _divide(
        centred, source, options.advantage_scale, options.advantage_ddof, options.advantage_epsilon
    )


def _length_weighted_mean(row: Sequence[float], tokens: Sequence[float]) -> float:
    if len(row) == 1:
        return 0.0
    if min(row) == max(row):
        return row[0]
    return fsum(r * n for r, n in zip(row, tokens, strict=True)) / fsum(tokens)


def _lead_of_best(row: Sequence[float]) -> list[float]:
    """Compute how far the best is above the second, at its place; 0 elsewhere.

    >>> _lead_of_best([0.0, 3.0, 1.0])
    [0.0, 2.0, 0.0]
    """
    second, first = sorted(row)[-2:]
    place = list(row).index(first)
    return [first - second if at == place else 0.0 for at in range(len(row))]


def _each_reward_advantages(
    scores: Sequence[tuple[float, Rewards]], lengths: Rewards, options: LossConfig
) -> list[list[float]]:
    """Weigh each reward's advantages, add them up and divide by the deviation over the batch."""
    parts = [(weight, _summed_reward_advantages(rows, lengths, options)) for weight, rows in scores]
    summed = [
        [fsum(weight * rows[group][place] for weight, rows in parts) for place in range(len(row))]
        for group, row in enumerate(lengths)
    ]
    centred = _subtract(summed, by_peers(summed, "batch", _mean))
    return _divide(centred, summed, "batch", options.advantage_ddof, options.advantage_epsilon)


def _whiten(advantages: Rewards, lengths: Rewards) -> list[list[float]]:
    """Centre by the mean over all tokens and divide by their deviation (n - 1): each token of a sample counts."""
    pairs = [
        pair
        for row, tokens in zip(advantages, lengths, strict=True)
        for pair in zip(row, tokens, strict=True)
    ]
    count = fsum(tokens for _, tokens in pairs)
    mean = fsum(value * tokens for value, tokens in pairs) / count
    variance = fsum(tokens * (value - mean) ** 2 for value, tokens in pairs) / max(count - 1, 1)
    return [[(value - mean) / (variance + 1e-8) ** 0.5 for value in row] for row in advantages]
