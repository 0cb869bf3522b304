"""Recompute advantages from rewards and groups (P11), to recognise the formula or a mistake in it.

The formulas are (reward - baseline) / (deviation + epsilon), with the baselines and scales of known trainers. The
result is clean with the formula if one reproduces the recorded numbers. It is a fault if all advantages are 0 although
rewards differ, or if a known mistake reproduces the numbers: wrong sign, interleaved groups. Otherwise it is undecided.
The weights of several reward functions are not recorded: equal weights are assumed, and the result is skipped instead
of undecided. At most about 4096 samples are used.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import sqrt
from typing import Any

from diagnostics.audit.recorded.run_data import Recording, Sample, group_indices
from diagnostics.audit.recorded.stats import deviation, fsum, mean
from diagnostics.audit.results import Estimate, Result, clean, fault, note, skipped, undecided
from diagnostics.audit.training_curves import Curves

Groups = list[list[int]]
_MIN_SAMPLES, _MAX_SAMPLES = 8, 4096
_PEERS = ("group", "leave_one_out", "batch", "none")
# As in grpo_core/learn/dialects.py; formulas that give the same numbers count as one.
_EPSILONS = (1e-4, 1e-6, 1e-8, 0.0)
# A few units in the last place of float32 numbers about 1.
_TOLERANCE = 2e-4


@dataclass(frozen=True)
class Formula:
    """A formula for advantages.

    Attributes:
        baseline: Samples whose mean reward is subtracted: `group`, `leave_one_out`, `batch` or `none`.
        scale: Samples by whose deviation of rewards the difference is divided: one of the same names.
        ddof: Number that is subtracted from the number of samples in the variance.
        epsilon: Number that is added to the deviation.
    """

    baseline: str
    scale: str
    ddof: int = 1
    epsilon: float = 0.0

    def __str__(self) -> str:
        scale = "" if self.scale == "none" else f", ddof {self.ddof}, epsilon {self.epsilon:g}"
        return f"baseline {self.baseline}, scale {self.scale}{scale}"

    def apply(self, rewards: Sequence[float], groups: Groups) -> list[float]:
        """Compute the advantages; a deviation of 0 divides by 1.

        >>> Formula("group", "none").apply([0.0, 1.0], [[0, 1]])
        [-0.5, 0.5]
        """
        means = _peer_means(rewards, groups, self.baseline)
        spreads = _peer_deviations(rewards, groups, self.scale, self.ddof)
        samples = zip(rewards, means, spreads, strict=True)
        return [
            (reward - mean) / (spread + self.epsilon if spread else 1.0) for reward, mean, spread in samples
        ]


def _peer_means(rewards: Sequence[float], groups: Groups, peers: str) -> list[float]:
    """Return the mean reward of each sample's peers, in linear time; 0 for `none`, its own reward without peers."""
    if peers in ("batch", "none"):
        return [mean(rewards if peers == "batch" else ())] * len(rewards)
    values = [0.0] * len(rewards)
    for group in groups:
        total = fsum(rewards[index] for index in group)
        alone = peers == "group" or len(group) == 1
        for index in group:
            values[index] = total / len(group) if alone else (total - rewards[index]) / (len(group) - 1)
    return values


def _peer_deviations(rewards: Sequence[float], groups: Groups, peers: str, ddof: int) -> list[float]:
    """Return the deviation of the rewards of each sample's peers, in linear time; 0 for `none`."""
    if peers in ("batch", "none"):
        return [deviation(rewards if peers == "batch" else (), ddof)] * len(rewards)
    values = [0.0] * len(rewards)
    for group in groups:
        members = [rewards[index] for index in group]
        spread, counts, size = deviation(members, ddof), Counter(members), len(members)
        center = mean(members)
        squares = fsum((value - center) ** 2 for value in members)
        for index in group:
            reward = rewards[index]
            values[index] = spread
            if peers == "leave_one_out" and size > 1:
                rest = squares - (reward - center) * (reward - center) * size / (size - 1)
                equal = len(counts) == 1 or (len(counts) == 2 and counts[reward] == 1)
                values[index] = 0.0 if equal or size - 1 <= ddof else sqrt(max(0.0, rest) / (size - 1 - ddof))
    return values


_FORMULAS = [Formula(baseline, "none") for baseline in _PEERS]
_FORMULAS += [Formula(*choice) for choice in product(_PEERS, _PEERS[:3], (1, 0), _EPSILONS)]


@dataclass(frozen=True)
class Step:
    """Rewards and advantages of one step's samples, and its groups as lists of sample indices."""

    rewards: list[float]
    advantages: list[float]
    groups: Groups


def check_advantages(recording: Recording) -> Result | None:
    """Find the formula that reproduces a recording's advantages, or the mistake in them; None for fewer than 8."""
    if sum(row.advantage is not None for row in recording.rows) < _MIN_SAMPLES:
        return None
    steps = _steps(recording)
    count = sum(len(step.rewards) for step in steps)
    if count < _MIN_SAMPLES:
        return undecided("advantages", note("want_spread:advantages", least=_MIN_SAMPLES))
    ranked = sorted((_residual(steps, formula), str(formula)) for formula in _FORMULAS)
    residual, best = ranked[0]
    if residual <= _TOLERANCE:
        return _formula_result(recording, count, ranked)
    evidence = (note("advantages_unlike", best=best, residual=residual),)
    fields: dict[str, Any] = {"floor": _TOLERANCE, "count": count, "evidence": evidence}
    if mistake := _find_mistake(steps, residual, fields):
        return mistake
    if any(row.reward is None for row in recording.rows):
        return skipped("advantages", "want_weights")
    return undecided("advantages", note("want_weights"), residual=residual, **fields)


def _steps(recording: Recording) -> list[Step]:
    """Return steps, of about 4096 samples at most, that have all rewards and advantages, and a group with a spread."""
    size = _group_size(recording)
    steps: list[Step] = []
    count = 0
    for rows in recording.steps().values():
        rewards = [reward for row in rows if (reward := row.total_reward) is not None]
        advantages = [row.advantage for row in rows if row.advantage is not None]
        if len(rewards) == len(advantages) == len(rows):
            groups = _group_indices(rows, size)
            # Without a spread in some group every formula of a group baseline gives zeros.
            if any(len({rewards[index] for index in group}) > 1 for group in groups):
                steps.append(Step(rewards, advantages, groups))
                count += len(rows)
        if count >= _MAX_SAMPLES:
            break
    return steps


def _group_size(recording: Recording) -> int:
    """Return the most frequent group size above 1, or 0; a prompt drawn twice in a step counts as two groups."""
    sizes = Counter(len(group) for rows in recording.steps().values() for group in group_indices(rows))
    counts = {size: sum(n for larger, n in sizes.items() if larger % size == 0) for size in sizes if size > 1}
    return max(counts, key=lambda size: (counts[size], size), default=0)


def _group_indices(rows: Sequence[Sample], size: int) -> Groups:
    """Return the groups of a step as lists of indices into its rows; a multiple of the group size is divided."""
    groups: Groups = []
    for indices in group_indices(rows):
        width = size if size and len(indices) % size == 0 else len(indices)
        groups += [indices[start : start + width] for start in range(0, len(indices), width)]
    return groups


def _residual(steps: Sequence[Step], formula: Formula) -> float:
    """Return the largest relative difference of computed and recorded advantages, without the largest 1 %.

    The largest advantages may be clipped. For a formula that is clearly wrong, the remaining steps are not compared.
    """
    differences: list[float] = []
    for step in steps:
        computed = formula.apply(step.rewards, step.groups)
        differences += [abs(a - b) / max(1.0, abs(b)) for a, b in zip(computed, step.advantages, strict=True)]
        if len(differences) >= 16 and sum(value > 0.05 for value in differences) > len(differences) // 4:
            return max(differences)
    return sorted(differences)[-1 - len(differences) // 100] if differences else float("inf")


def _formula_result(recording: Recording, count: int, ranked: list[tuple[float, str]]) -> Result:
    """Return a clean result that names the formulas that reproduce the recorded advantages."""
    fits = [name for residual, name in ranked if residual <= max(4 * ranked[0][0], 2e-6)]
    fact = note("advantages_fit", recording.kind, ways="; or ".join(fits[:4]))
    fields: dict[str, Any] = {"estimates": (Estimate("dialect", fits[0]),), "evidence": (fact,)}
    return clean("advantages", count=count, residual=ranked[0][0], floor=_TOLERANCE, **fields)


def _find_mistake(steps: list[Step], nearest: float, fields: dict[str, Any]) -> Result | None:
    """Return a fault if all advantages are 0, or if a formula fits after a change in `_MISTAKES`; otherwise None.

    `nearest` is the least residual without a change.
    """
    if all(value == 0 for step in steps for value in step.advantages):
        return fault("advantages/zero", residual=0.0, **fields)
    for family, adjust in _MISTAKES.items():
        adjusted = [adjust(step) for step in steps]
        residual, formula = min((_residual(adjusted, formula), str(formula)) for formula in _FORMULAS)
        if residual <= 5 * _TOLERANCE and residual * 20 <= nearest:
            fields |= {"estimates": (Estimate("dialect", formula),), "residual": residual}
            fields["evidence"] += tuple(Curves(()).causes(family))
            return fault(family, {"way": formula}, **fields)
    return None


def _interleave(step: Step) -> Step:
    """Return a step with the groups of a trainer that wrongly takes every n-th sample as a group."""
    size = len(step.groups)
    groups = [list(range(first, len(step.rewards), size)) for first in range(size)]
    return replace(step, groups=groups)


# Family of each mistake, and a function that changes a step so that the right formula fits it.
_MISTAKES: dict[str, Callable[[Step], Step]] = {
    "advantages/sign": lambda step: replace(step, advantages=[-value for value in step.advantages]),
    "advantages/grouping": _interleave,
}
