"""Advantages beside the core's: OPO, pass@k, GDPO, REINFORCE++.

Sources: `compute_opo_outcome_advantage`, `compute_grpo_passk_outcome_advantage`, `compute_gdpo_outcome_advantage` and
`compute_reinforce_plus_plus_baseline_outcome_advantage` of verl 0.9.1; `normalize_then_sum` of TRL 1.16.0.
"""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING, Any

from grpo_core.learn.advantages import by_peers, configured, deviation, group_advantages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpo_core.types import Group
    from grpo_core.wide import WideConfig, WideLossConfig

    Rows = Sequence[Sequence[float]]


def wide_advantages(
    rewards: Rows,
    lengths: Sequence[Sequence[int]],
    options: WideLossConfig,
    scores: Sequence[tuple[float, Rows]] = (),
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


def wide_judged(groups: Sequence[Group], config: WideConfig) -> list[Group]:
    """The groups with these advantages."""
    rewards = [group.rewards for group in groups]
    lengths = [[len(sample.completion.ids) for sample in group.samples] for group in groups]
    names = list(groups[0].samples[0].scores)
    given = dict(zip(names, config.reward.weights))  # noqa: B905 - the overlong penalty has none, and counts once
    scores = [
        (given.get(name, 1.0), [[sample.scores[name] or 0.0 for sample in group.samples] for group in groups])
        for name in names
    ]
    found = wide_advantages(rewards, lengths, config.loss, scores)
    return [group.having("advantage", row) for group, row in zip(groups, found, strict=True)]


def _of_sums(rewards: Rows, lengths: Rows, options: WideLossConfig) -> list[list[float]]:
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


def _scaled(rewards: Rows, centred: Rows, usual: dict[str, Any]) -> list[list[float]]:
    """The differences, divided as the core divides."""
    deviations = by_peers(rewards, usual["scale"], lambda peers: deviation(peers, usual["ddof"]))
    return [
        [value / (spread + usual["epsilon"] if spread else 1.0) for value, spread in zip(*row, strict=True)]
        for row in zip(centred, deviations, strict=True)
    ]


def _of_each(
    scores: Sequence[tuple[float, Rows]], lengths: Rows, options: WideLossConfig
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


def _whitened(advantages: Rows, lengths: Rows) -> list[list[float]]:
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
