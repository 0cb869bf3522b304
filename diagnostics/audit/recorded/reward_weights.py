"""Recover the weights of a run's reward functions from its metrics, because dumps of completions lack them.

`fit_weights` solves for them by least squares: TRL logs the reward and the mean of each function. `weigh_rewards` then
sets the reward of each sample to the weighted sum of its scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from diagnostics.audit.recorded.run_data import MetricSeries, RunArtifacts, Sample

_MEAN = "rewards/{}/mean"
_CLOSE = 1e-3


def weigh_rewards(run: RunArtifacts) -> RunArtifacts:
    """Return the run with the weighted sum of its scores as reward of each sample, where metrics determine the weights.

    Recordings with a reward, or with scores of one function only, stay as they are.
    """
    recordings = []
    for recording in run.recordings:
        names = sorted({name for row in recording.rows for name in row.scores})
        is_open = len(names) > 1 and not any(row.reward is not None for row in recording.rows)
        fits = (fit_weights(series, names) for series in run.series) if is_open else ()
        weights = next(filter(None, fits), None)
        if weights:
            rows = tuple(replace(row, reward=_weighted_sum(row, weights)) for row in recording.rows)
            recording = replace(recording, rows=rows)  # noqa: PLW2901
        recordings.append(recording)
    return replace(run, recordings=tuple(recordings))


def _weighted_sum(row: Sample, weights: Mapping[str, float]) -> float | None:
    parts = [weights[name] * score for name, score in row.scores.items() if score is not None]
    return sum(parts) if parts else None


def fit_weights(series: MetricSeries, names: Sequence[str]) -> dict[str, float] | None:
    """Fit the reward of each step as a weighted sum of the functions' means; None unless the fit is exact to 0.1 %.

    A function that is 0 in all steps has the weight 1, which changes no reward.
    """
    means = [_MEAN.format(name) for name in names]
    rows = [row for row in series.rows if math.isfinite(row.values.get("reward", math.nan))]
    rows = [row for row in rows if all(math.isfinite(row.printed.get(name, math.nan)) for name in means)]
    used = [name for name in means if any(row.printed[name] for row in rows)]
    if len(rows) < len(used) + 4 or not used:
        return None
    points = [[row.printed[name] for name in used] for row in rows]
    targets = [row.values["reward"] for row in rows]
    size = range(len(used))
    matrix = [[sum(x[i] * x[j] for x in points) for j in size] for i in size]
    right = [sum(x[i] * y for x, y in zip(points, targets, strict=True)) for i in size]
    solution = _solve(matrix, right)
    if solution is None:
        return None
    error = max(abs(sum(map(float.__mul__, solution, x)) - y) for x, y in zip(points, targets, strict=True))
    if not error <= _CLOSE * max(1.0, *map(abs, targets)):
        return None
    # Weights are decimal numbers that people write.
    weights = {name: round(weight, 3) for name, weight in zip(used, solution, strict=True)}
    return {name: weights.get(mean, 1.0) for name, mean in zip(names, means, strict=True)}


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Solve a small symmetric system of equations by elimination; None if it is nearly singular."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for index, row in enumerate(rows):
        if not abs(row[index]) > 1e-6 * abs(matrix[index][index]):
            return None
        for other in rows:
            if other is not row:
                factor = other[index] / row[index]
                other[:] = [a - factor * b for a, b in zip(other, row, strict=True)]
    return [row[-1] / row[index] for index, row in enumerate(rows)]
