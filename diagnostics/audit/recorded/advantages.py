"""Recompute advantages from rewards and groups (P11), to recognise the formula or a mistake in it.

All formulas are (reward - baseline) / (deviation + epsilon), with every baseline and scale that trainers use. A fault
is reported only if a mistake reproduces the recorded numbers and no correct formula does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from diagnostics.audit.recorded.run_data import Recording, RunArtifacts, Sample, group_samples
from diagnostics.audit.recorded.stats import deviation, mean
from diagnostics.audit.results import Estimate, Result, RunnerUp, clean, fault, note, skipped, undecided

Groups = list[list[int]]
_ENOUGH, _MOST = 8, 4096
_PEERS = ("group", "leave_one_out", "batch", "none")
# As in grpo_core/learn/dialects.py; formulas that give the same numbers count as one.
_EPSILONS = (1e-4, 1e-6, 1e-8, 0.0)
# A few units in the last place of float32 numbers about 1.
_TOLERANCE = 2e-4


@dataclass(frozen=True)
class Formula:
    """A formula for advantages; baseline and scale are `group`, `leave_one_out`, `batch` or `none`."""

    baseline: str
    scale: str
    ddof: int = 1
    epsilon: float = 0.0

    def __str__(self) -> str:
        scale = "" if self.scale == "none" else f", ddof {self.ddof}, epsilon {self.epsilon:g}"
        return f"baseline {self.baseline}, scale {self.scale}{scale}"

    def apply(self, rewards: Sequence[float], groups: Groups) -> list[float]:
        """Compute advantages.

        >>> Formula("group", "none").apply([0.0, 1.0], [[0, 1]])
        [-0.5, 0.5]
        """
        advantages = [0.0] * len(rewards)
        for group in groups:
            for place in group:
                base = mean(_peers(rewards, group, place, self.baseline))
                spread = deviation(_peers(rewards, group, place, self.scale), self.ddof)
                advantages[place] = (rewards[place] - base) / (spread + self.epsilon if spread else 1.0)
        return advantages


def _peers(rewards: Sequence[float], group: list[int], place: int, peers: str) -> Sequence[float]:
    if peers == "group":
        return [rewards[index] for index in group]
    if peers == "leave_one_out":
        return [rewards[index] for index in group if index != place] or [rewards[place]]
    return rewards if peers == "batch" else ()


_USUAL = Formula("group", "group", 1, 1e-4)
_FORMULAS = [Formula(baseline, "none") for baseline in _PEERS]
_FORMULAS += [Formula(*choice) for choice in product(_PEERS, _PEERS[:3], (1, 0), _EPSILONS)]
_COMMON_FORMULAS = [formula for formula in _FORMULAS if formula.epsilon in (1e-4, 0.0)]


@dataclass(frozen=True)
class Step:
    """Rewards and advantages of one step's samples, and its groups as lists of sample indices."""

    rewards: list[float]
    advantages: list[float]
    groups: Groups


def check_advantages(run: RunArtifacts) -> list[Result]:
    """Compare the advantages of each recording that has at least 8 with those of known formulas."""
    results = [
        _check_recording(recording)
        for recording in run.recordings
        if sum(row.advantage is not None for row in recording.rows) >= _ENOUGH
    ]
    need = "advantages in the dump: log_completions=True (TRL, ms-swift) or output.record_every=1 (grpo_core)"
    return results or [skipped("advantages", "want_advantages", need)]


def _check_recording(recording: Recording) -> Result:
    fits: list[tuple[float, str, list[Step]]] = []
    for reward_source in _reward_sources(recording):
        steps = _steps(recording, reward_source)
        if sum(len(step.rewards) for step in steps) < _ENOUGH:
            continue
        ranked = sorted((_residual(steps, formula), str(formula)) for formula in _FORMULAS)
        if ranked[0][0] <= _TOLERANCE:
            return _formula_result(recording, steps, reward_source, ranked)
        fits.append((*ranked[0], steps))
    if not fits:
        text = "steps with a group whose rewards differ; there are fewer than {least} such samples"
        return undecided("advantages", note("want_spread", text, least=_ENOUGH))
    residual, best, steps = min(fits, key=lambda fit: fit[0])
    text = "the nearest right formula ({best}) is off by {residual:.2g}"
    evidence = (note("advantages_unlike", text, best=best, residual=residual),)
    count = sum(len(step.rewards) for step in steps)
    fields: dict[str, Any] = {"floor": _TOLERANCE, "count": count, "evidence": evidence}
    for *_, candidate_steps in fits:
        if mistake := _find_mistake(candidate_steps, RunnerUp(best, residual), fields):
            return mistake
    text = "how rewards of several functions are weighed, and how the advantage is scaled"
    return undecided("advantages", note("want_weights", text), residual=residual, **fields)


def _reward_sources(recording: Recording) -> list[str]:
    """Return possible sources of the reward: "" as recorded, "+" the sum of the scores, or the name of one score."""
    if any(row.reward is not None for row in recording.rows):
        return [""]
    names = list(dict.fromkeys(name for row in recording.rows[:64] for name in row.scores))
    return ["+", *names[:8]] if names else []


def _steps(recording: Recording, reward_source: str) -> list[Step]:
    """Return steps whose samples all have a reward and an advantage, and that have a group with a spread."""
    size = _group_size(recording)
    steps: list[Step] = []
    count = 0
    for rows in recording.steps().values():
        is_total = reward_source in {"", "+"}
        totals = (row.total_reward if is_total else row.scores.get(reward_source) for row in rows)
        rewards = [reward for reward in totals if reward is not None]
        advantages = [row.advantage for row in rows if row.advantage is not None]
        if len(rewards) == len(advantages) == len(rows):
            groups = _group_indices(rows, size)
            # Without a spread in some group every formula of a group baseline gives zeros.
            if any(len({rewards[place] for place in group}) > 1 for group in groups):
                steps.append(Step(rewards, advantages, groups))
                count += len(rows)
        if count >= _MOST:
            break
    return steps


def _group_size(recording: Recording) -> int:
    """Return the most frequent group size; a prompt drawn twice in a step counts as two groups."""
    sizes = Counter(len(group) for rows in recording.steps().values() for group in group_samples(rows))
    counts = {size: sum(n for larger, n in sizes.items() if larger % size == 0) for size in sizes if size > 1}
    return max(counts, key=lambda size: (counts[size], size), default=0)


def _group_indices(rows: Sequence[Sample], size: int) -> Groups:
    """Return the groups of a step as lists of indices into its rows."""
    place = {id(row): index for index, row in enumerate(rows)}
    groups: Groups = []
    for group in group_samples(rows):
        places = [place[id(row)] for row in group]
        width = size if size and len(places) % size == 0 else len(places)
        groups += [places[start : start + width] for start in range(0, len(places), width)]
    return groups


def _residual(steps: Sequence[Step], formula: Formula) -> float:
    """Return the largest relative difference of computed and recorded advantages, without the largest 1 %.

    The largest advantages may be clipped.
    """
    differences: list[float] = []
    for step in steps:
        computed = formula.apply(step.rewards, step.groups)
        differences += [abs(a - b) / max(1.0, abs(b)) for a, b in zip(computed, step.advantages, strict=True)]
        if len(differences) >= 16 and sum(value > 0.05 for value in differences) > len(differences) // 4:
            return max(differences)
    return sorted(differences)[-1 - len(differences) // 100] if differences else float("inf")


def _formula_result(
    recording: Recording, steps: list[Step], reward_source: str, ranked: list[tuple[float, str]]
) -> Result:
    """Return a clean result that names the formulas that reproduce the recorded advantages."""
    fits = [name for residual, name in ranked if residual <= max(4 * ranked[0][0], 2e-6)]
    runner_ups = [RunnerUp(name, residual) for residual, name in ranked[len(fits) :]]
    text, reward = "made by {ways}; reward: {reward}", reward_source or "as recorded"
    fact = note("advantages_fit", text, recording.kind, ways="; or ".join(fits[:4]), reward=reward)
    fields: dict[str, Any] = {"estimates": (Estimate("dialect", fits[0]),), "evidence": (fact,)}
    fields |= {"residual": ranked[0][0], "floor": _TOLERANCE, "runner_up": next(iter(runner_ups), None)}
    return clean("advantages", count=sum(len(step.rewards) for step in steps), **fields)


def _find_mistake(steps: list[Step], nearest: RunnerUp, fields: dict[str, Any]) -> Result | None:
    """Return the fault whose undoing makes the recorded numbers fit a formula; None if no known mistake does."""
    if all(value == 0 for step in steps for value in step.advantages):
        message = "all advantages are 0 although rewards differ within groups: nothing is learnt"
        return fault("advantages/zero", message, "NUM041", residual=0.0, runner_up=nearest, **fields)
    for family, message, detail, undo in _mistakes(steps):
        corrected = [undo(step) for step in steps]
        residual, formula = min((_residual(corrected, formula), str(formula)) for formula in _COMMON_FORMULAS)
        if residual <= 5 * _TOLERANCE and residual * 20 <= nearest.residual:
            values, estimates = {"told": detail, "way": formula}, (Estimate("dialect", formula),)
            fields |= {"estimates": estimates, "residual": residual, "runner_up": nearest}
            return fault(family, message, "NUM041", values, **fields)
    return None


def _mistakes(steps: Sequence[Step]) -> Iterator[tuple[str, str, str, Callable[[Step], Step]]]:
    """Yield family, message and detail of each mistake, and a function that undoes it in a step."""

    def with_advantages(change: Callable[[list[float]], list[float]]) -> Callable[[Step], Step]:
        return lambda step: replace(step, advantages=change(step.advantages))

    message = "the advantages have the wrong sign: worse completions become likelier ({way})"
    yield "advantages/sign", message, "", with_advantages(lambda values: [-value for value in values])
    message = "the advantages are those of interleaved groups, not of the prompts' groups ({way})"
    yield "advantages/grouping", message, "", _interleave
    size = max(len(step.groups[0]) for step in steps)
    message = "the advantages stand {told} rows away from their samples ({way})"
    for shift in (1, -1, size, -size):
        yield "advantages/shifted", message, f"{shift:+d}", with_advantages(partial(_rotate, shift))
    if scale := _scale(steps):
        message = "the advantages are {told} times those of the rewards and groups ({way})"
        undo = with_advantages(lambda values: [value / scale for value in values])
        yield "advantages/scaled", message, f"{scale:.4g}", undo


def _rotate(by: int, values: list[float]) -> list[float]:
    return [*values[by % len(values) :], *values[: by % len(values)]]


def _interleave(step: Step) -> Step:
    """Return a step with the groups of a trainer that wrongly takes every n-th sample as a group."""
    size = len(step.groups)
    groups = [list(range(first, len(step.rewards), size)) for first in range(size)]
    return replace(step, groups=groups)


def _scale(steps: Sequence[Step]) -> float:
    """Return the constant factor between recorded and usual advantages; 0 if there is none."""
    usual = [value for step in steps for value in _USUAL.apply(step.rewards, step.groups)]
    pairs = list(zip(usual, (value for step in steps for value in step.advantages), strict=True))
    norm = sum(a * a for a, _ in pairs)
    return sum(a * b for a, b in pairs) / norm if norm else 0.0
