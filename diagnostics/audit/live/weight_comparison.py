"""Compare the engine's scores with checkpoints: is the difference rounding, or where do its weights lie between them?

Weights between two checkpoints (P3) are found by projecting the engine's difference on theirs, tensors that did not
arrive (P4) by a regression on what each group of tensors would change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from diagnostics.audit.live.reference import DTYPES, Reference, Sequences

# Factors of the floor for an alarm, and for an open result. A correct 16-bit engine is off by 0.9 to 1.2 times
# what PyTorch is; 32-bit kernels differ more among themselves, and by less than matters.
ALARM = {"float32": 12.0, "bfloat16": 1.6, "float16": 1.6}
_OPEN = {"float32": 6.0, "bfloat16": 1.3, "float16": 1.3}
_LEAST_FLOOR = 2e-6
# Kernels of many layers differ more: a correct engine of 24 layers was off by 1.42 times what PyTorch is.
_DEEP = 1.4
_LAYER = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")
_MAX_GROUPS = 12
# Largest share of the difference that may remain for a partial update to be examined further.
_EXPLAINS = 0.6
# Standard errors beyond the newest checkpoint, and cosine with the last step: newer weights had 0.25 and more;
# noise, other types and other runs 0.03 and less.
_BEYOND, _PARALLEL = 4.0, 0.15


@dataclass(frozen=True)
class Scores:
    """Log-probs of chosen ids from the engine and from a checkpoint.

    Attributes:
        sequences: The ids.
        engine: The engine's log-prob of each id but the first of each sequence, concatenated.
        exact: The checkpoint's.
        floor: Mean difference that rounding to the type makes.
    """

    reference: Reference
    sequences: Sequences
    engine: Any
    dtype: str
    exact: Any
    floor: float

    @property
    def difference(self) -> Any:
        """Return the engine's log-probs less the checkpoint's."""
        return self.engine - self.exact

    @property
    def residual(self) -> float:
        """Return the mean absolute difference."""
        return self.residual_of(self.exact)

    @property
    def limit(self) -> float:
        """Return the residual from which on it is a fault."""
        return ALARM[self.dtype] * self.floor

    @property
    def at_floor(self) -> bool:
        """Return whether rounding alone explains the residual."""
        return self.residual <= _OPEN[self.dtype] * self.floor

    def residual_of(self, exact: Any) -> float:
        """Return the engine's mean absolute difference from other weights' log-probs."""
        return float((self.engine - exact).abs().mean())

    def scores_of(self, weights: Reference) -> Any:
        """Return the log-probs of the same ids with other weights."""
        return weights.scores(self.sequences, self.dtype)

    def mean_by_position(self) -> Any:
        """Return the mean absolute difference at each position, up to the shortest sequence."""
        rows = self.difference.abs().split([len(ids) - 1 for ids in self.sequences])
        shortest = min(len(row) for row in rows)
        return sum(row[:shortest] for row in rows) / len(rows)


def compare(reference: Reference, sequences: Sequences, engine: Any, dtype: str, exact: Any = None) -> Scores:
    """Compare with a checkpoint in a type."""
    exact = reference.scores(sequences, dtype) if exact is None else exact
    floor = 0.0
    if dtype != "float32" or not reference.large:  # a large model is computed in 32 bits both times
        floor = float((reference.scores(sequences, dtype, native=True) - exact).abs().mean())
        floor *= _DEEP if reference.large else 1.0
    return Scores(reference, sequences, engine, dtype, exact, max(floor, _LEAST_FLOOR))


def compare_in_best_type(reference: Reference, sequences: Sequences, engine: Any, dtype: str) -> Scores:
    """Compare in the type that the server names, else in the finest type whose rounding explains the engine.

    If none does, the weights are wrong. Then the coarsest type is used, so that a type is never a fault.
    """
    if dtype in DTYPES:
        return compare(reference, sequences, engine, dtype)
    scores = first = compare(reference, sequences, engine, "float32")
    # Nobody serves a large bfloat16 checkpoint as float16, and each type takes its time.
    unlikely = "float16" if reference.large and reference.dtype == "bfloat16" else ""
    for kind in ("float16", "bfloat16"):
        if scores.at_floor:
            break
        if kind != unlikely:
            unrounded = first.exact if reference.dtype == kind and not reference.has_adapter else None
            scores = compare(reference, sequences, engine, kind, unrounded)
    return scores


def floor_with(other: Reference, scores: Scores) -> float:
    """Return the floor with other weights, which is larger for trained than for untrained ones."""
    return max(scores.floor, compare(other, scores.sequences, scores.engine, scores.dtype).floor)


@dataclass(frozen=True)
class Slope:
    """Projection of the engine on the way from one checkpoint (0) to another (1).

    Attributes:
        error: Standard error.
        residual: Mean difference that remains.
        distance: Root mean square distance of the two checkpoints.
    """

    value: float
    error: float
    residual: float
    distance: float


def project(difference: Any, direction: Any) -> Slope:
    """Project one vector on another."""
    norm = float(direction @ direction)
    if norm == 0:
        return Slope(0.0, math.inf, float(difference.abs().mean()), 0.0)
    value = float(difference @ direction) / norm
    rest = difference - value * direction
    # By token, because a token with a large difference and a large error counts with both.
    error = math.sqrt(float((rest.square() * direction.square()).sum())) / norm
    return Slope(value, error, float(rest.abs().mean()), math.sqrt(norm / len(direction)))


@dataclass(frozen=True)
class Newer:
    """Names of the newest checkpoints, and the engine's place on the way through both: above 1."""

    newest: str
    before: str
    slope: Slope


def find_newer(known: Sequence[tuple[Reference, Any]], engine: Any) -> Newer | None:
    """Return the two newest checkpoints if the engine is newer than all of them.

    Its difference from the newest must point where the last step pointed: weights with noise, and much older ones, lie
    beyond the newest too.
    """
    numbered = sorted(
        (pair for pair in known if pair[0].step is not None), key=lambda pair: pair[0].step or 0
    )
    nearest = min(known, key=lambda pair: float((engine - pair[1]).abs().mean()))[0]
    if len(numbered) < 2 or nearest is not numbered[-1][0]:
        return None
    (before, old), (newest, new) = numbered[-2:]
    ahead, last_step = engine - new, new - old
    slope = project(engine - old, last_step)
    cosine = float(ahead @ last_step) / (float(ahead.norm()) * float(last_step.norm()) or 1.0)
    is_beyond = slope.value - 1 > _BEYOND * slope.error and cosine > _PARALLEL
    return Newer(newest.name, before.name, slope) if is_beyond else None


def is_oldest(reference: Reference, known: Sequence[Reference]) -> bool:
    """Return whether all steps are known and none is before this one's."""
    steps = [checkpoint.step for checkpoint in known if checkpoint.step is not None]
    return reference.step is not None and len(steps) == len(known) and reference.step <= min(steps)


def group_tensors(names: Iterable[str]) -> dict[str, list[str]]:
    """Group tensors: embedding, each layer or block of layers, head and last norm."""
    numbers = {name: int(match[1]) for name in names if (match := _LAYER.search(name))}
    last_layer = max(numbers.values(), default=0)
    size = max(1, math.ceil(len(set(numbers.values())) / (_MAX_GROUPS - 2)))
    groups: dict[str, list[str]] = {}
    for name in names:
        group = "embedding" if "embed" in name or "wte" in name else "head and last norm"
        if name in numbers:
            first = numbers[name] // size * size
            last = min(first + size - 1, last_layer)
            group = f"layer {first}" if size == 1 else f"layers {first} to {last}"
        groups.setdefault(group, []).append(name)
    return groups


@dataclass(frozen=True)
class PartialUpdate:
    """Groups of tensors that are still another checkpoint's.

    Attributes:
        shares: Estimated share of the other checkpoint in each group, and its standard error.
        residual: Mean difference with these groups swapped.
        mixed: The weights that the engine then holds.
    """

    stale: tuple[str, ...]
    shares: dict[str, tuple[float, float]]
    residual: float
    mixed: Reference


def find_partial_update(scores: Scores, other: Reference) -> PartialUpdate | None:
    """Regress the difference on what each group alone would make, then swap those groups and compare again."""
    import torch

    reference, engine = scores.reference, scores.engine
    groups = group_tensors(list(reference.state))
    if not reference.has_same_tensors(other) or len(groups) < 2:
        return None
    own = scores.scores_of(reference)
    mixes = (reference.mix(other, frozenset(members).__contains__) for members in groups.values())
    columns = {name: scores.scores_of(mixed) - own for name, mixed in zip(groups, mixes, strict=True)}
    columns = {name: column for name, column in columns.items() if float(column.abs().max()) > 0}
    if not columns:
        return None
    matrix = torch.stack(list(columns.values()), dim=1)
    inverse = torch.linalg.pinv(matrix.T @ matrix)
    solution = inverse @ matrix.T @ (engine - own)
    rest = engine - own - matrix @ solution
    if float(rest.abs().mean()) > _EXPLAINS * float((engine - own).abs().mean()):
        return None
    errors = (inverse.diagonal() * rest.square().mean()).sqrt()
    shares = dict(zip(columns, zip(solution.tolist(), errors.tolist(), strict=True), strict=True))
    return _refine_groups(scores, other, groups, shares)


def _refine_groups(
    scores: Scores, other: Reference, groups: dict[str, list[str]], shares: dict[str, tuple[float, float]]
) -> PartialUpdate:
    """Add or remove one group at a time while that helps, because effects of groups are only nearly additive."""
    stale = {name for name, (value, _) in shares.items() if value > 0.5}

    def swap(names: set[str]) -> tuple[float, Reference]:
        inside = frozenset(tensor for name in names for tensor in groups[name])
        mixed = scores.reference.mix(other, inside.__contains__)
        return scores.residual_of(scores.scores_of(mixed)), mixed

    residual, mixed = swap(stale)
    for _ in range(len(shares)):
        if residual <= scores.limit:
            break
        candidates = [(swap(stale ^ {name}), name) for name in shares]
        (least, best), name = min(candidates, key=lambda attempt: attempt[0][0])
        if least >= 0.98 * residual:
            break
        residual, mixed, stale = least, best, stale ^ {name}
    return PartialUpdate(tuple(sorted(stale)), shares, residual, mixed)


@dataclass(frozen=True)
class AdapterFactor:
    """An adapter's scale in the engine: factor, standard error, residual, and the weights at that factor."""

    value: float
    error: float
    residual: float
    weights: Reference


def find_adapter_factor(scores: Scores) -> AdapterFactor:
    """Find how many times the adapter is added, by the secant method from 0 and 1."""
    reference = scores.reference
    before, at_before = 0.0, scores.scores_of(reference.scale_adapter(0.0))
    value, weights, at_value = 1.0, reference, scores.scores_of(reference)
    for _ in range(6):
        slope = project(scores.engine - at_value, (at_value - at_before) / (value - before))
        if abs(slope.value) < max(0.002, 0.1 * slope.error):
            break
        before, at_before = value, at_value
        value = min(8.0, max(-8.0, value + slope.value))
        weights = reference.scale_adapter(value)
        at_value = scores.scores_of(weights)
    return AdapterFactor(value, slope.error, scores.residual_of(at_value), weights)
