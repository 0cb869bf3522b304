"""Compare the engine's log-probs of chosen ids with a checkpoint's, and decide whether only rounding differs.

`compare` returns `Scores`, with the residual (mean absolute difference of the log-probs), the floor (the part that
rounding causes) and the alarm (fault threshold); `compare_in_best_dtype` also finds the engine's dtype. `project`
locates the engine on the line between two checkpoints.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from diagnostics.audit.live.reference import DTYPES, Reference, Sequences

# Multiples of the floor above which a residual is a fault, and above which it is undecided. The error of a correct
# 16-bit engine is 0.9 to 1.2 times that of PyTorch; 32-bit kernels differ more, but by an irrelevant amount.
ALARM = {"float32": 12.0, "bfloat16": 1.6, "float16": 1.6}
_UNDECIDED = {"float32": 6.0, "bfloat16": 1.3, "float16": 1.3}
_MIN_FLOOR = 2e-6
# Standard errors by which the effect of rounded weights must be missing to rule out a dtype.
_SIGMAS = 4.0
# Models of many layers differ more: the error of a correct engine with 24 layers was 1.42 times that of PyTorch.
_LARGE_MODEL_FACTOR = 1.4


@dataclass(frozen=True)
class Scores:
    """Log-probs of chosen ids from the engine and from a checkpoint.

    Attributes:
        reference: The checkpoint.
        sequences: The scored ids.
        engine: The engine's log-prob of each id but the first of each sequence, concatenated.
        dtype: The dtype that the engine computes in.
        exact: The checkpoint's log-probs, computed exactly.
        floor: Mean absolute difference that rounding in this dtype causes.
        may_be_rounding: Whether the difference may come from rounding the stored weights to this dtype.
    """

    reference: Reference
    sequences: Sequences
    engine: Any
    dtype: str
    exact: Any
    floor: float
    may_be_rounding: bool = True

    @property
    def difference(self) -> Any:
        """The engine's log-probs minus the checkpoint's."""
        return self.engine - self.exact

    @property
    def residual(self) -> float:
        """The mean absolute difference of the log-probs."""
        return self.residual_of(self.exact)

    @property
    def alarm(self) -> float:
        """The fault threshold: a larger residual is a fault."""
        return ALARM[self.dtype] * self.floor

    @property
    def rounding_limit(self) -> float:
        """The largest residual that rounding in this dtype explains; up to `alarm` it is undecided."""
        return _UNDECIDED[self.dtype] * self.floor

    @property
    def at_floor(self) -> bool:
        """Whether rounding alone may explain the residual."""
        return self.may_be_rounding and self.residual <= self.rounding_limit

    @property
    def result_fields(self) -> dict[str, Any]:
        """The numeric fields of a result about the checkpoint."""
        numbers = {"residual": self.residual, "floor": self.floor, "alarm": self.alarm}
        return numbers | {"count": len(self.engine), "decisive": True}

    def residual_of(self, exact: Any) -> float:
        """Return the engine's mean absolute difference from the given log-probs."""
        return float((self.engine - exact).abs().mean())

    def scores_of(self, weights: Reference) -> Any:
        """Return the log-probs of the same ids with other weights."""
        return weights.scores(self.sequences, self.dtype)


def compare(reference: Reference, sequences: Sequences, engine: Any, dtype: str, exact: Any = None) -> Scores:
    """Compare the engine's log-probs with a checkpoint's in a dtype.

    `exact` has the checkpoint's log-probs if they are computed already.
    """
    exact = reference.scores(sequences, dtype) if exact is None else exact
    floor = 0.0
    if dtype != "float32" or not reference.is_large:  # a large model is computed in 32 bits both times
        floor = float((reference.scores(sequences, dtype, native=True) - exact).abs().mean())
        floor *= _LARGE_MODEL_FACTOR if reference.is_large else 1.0
    return Scores(reference, sequences, engine, dtype, exact, max(floor, _MIN_FLOOR))


def compare_in_best_dtype(reference: Reference, sequences: Sequences, engine: Any, dtype: str) -> Scores:
    """Compare in the dtype that the server reports, else in the finest dtype whose rounding explains the difference.

    If no dtype explains it, the weights differ. Then the coarsest dtype is used, whose alarm is the highest, so that a
    wrong guess of the dtype is no fault.
    """
    if dtype in DTYPES:
        return compare(reference, sequences, engine, dtype)
    scores = first = compare(reference, sequences, engine, "float32")
    # A large bfloat16 checkpoint is seldom served as float16, and each comparison of a large model takes long.
    unlikely = "float16" if reference.is_large and reference.dtype == "bfloat16" else ""
    for coarser in ("float16", "bfloat16"):
        if scores.at_floor:
            break
        if coarser != unlikely:
            unrounded = first.exact if reference.dtype == coarser and not reference.has_adapter else None
            scores = compare(reference, sequences, engine, coarser, unrounded)
            # Rounding the stored weights moves the log-probs in a known direction. Other weights move them elsewhere.
            slope = project(first.difference, scores.exact - first.exact)
            if reference.dtype != coarser and slope.value < 0.5 and slope.value + _SIGMAS * slope.error < 1:
                scores = replace(scores, may_be_rounding=False)
    return scores


@dataclass(frozen=True)
class Slope:
    """The engine's position on the line from one checkpoint (0) to another (1).

    Attributes:
        value: The position.
        error: Standard error of the position.
        residual: Mean absolute difference of the engine from this position.
        distance: Root mean square distance of the two checkpoints.
    """

    value: float
    error: float
    residual: float
    distance: float


def project(difference: Any, direction: Any) -> Slope:
    """Return the engine's position: its difference from one checkpoint, projected on the direction to another.

    Without a direction the position is 0, with an infinite error.
    """
    norm = float(direction @ direction)
    if norm == 0:
        return Slope(0.0, math.inf, float(difference.abs().mean()), 0.0)
    value = float(difference @ direction) / norm
    rest = difference - value * direction
    # The error is summed by token, because tokens with a large difference have a large error.
    error = math.sqrt(float((rest.square() * direction.square()).sum())) / norm
    return Slope(value, error, float(rest.abs().mean()), math.sqrt(norm / len(direction)))
