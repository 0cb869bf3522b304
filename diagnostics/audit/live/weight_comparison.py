"""Compare the engine's log-probs of chosen ids with a checkpoint's, and decide whether only rounding differs.

To find weights between two checkpoints, the engine's difference is projected on the difference of the checkpoints.
"""

from __future__ import annotations

import math
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


@dataclass(frozen=True)
class Scores:
    """Log-probs of chosen ids from the engine and from a checkpoint.

    Attributes:
        sequences: The ids.
        engine: The engine's log-prob of each id but the first of each sequence, concatenated.
        exact: The checkpoint's log-probs, computed exactly.
        floor: Mean difference that rounding to the dtype causes.
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
        """Return the fault threshold: the residual from which on it is a fault."""
        return ALARM[self.dtype] * self.floor

    @property
    def at_floor(self) -> bool:
        """Return whether rounding alone explains the residual."""
        return self.residual <= _OPEN[self.dtype] * self.floor

    @property
    def result_fields(self) -> dict[str, Any]:
        """Return the numbers of a result about the checkpoint itself."""
        numbers = {"residual": self.residual, "floor": self.floor, "alarm": self.limit}
        return numbers | {"count": len(self.engine), "decisive": True}

    def residual_of(self, exact: Any) -> float:
        """Return the engine's mean absolute difference from other weights' log-probs."""
        return float((self.engine - exact).abs().mean())

    def scores_of(self, weights: Reference) -> Any:
        """Return the log-probs of the same ids with other weights."""
        return weights.scores(self.sequences, self.dtype)


def compare(reference: Reference, sequences: Sequences, engine: Any, dtype: str, exact: Any = None) -> Scores:
    """Compare the engine's log-probs with a checkpoint's in a dtype."""
    exact = reference.scores(sequences, dtype) if exact is None else exact
    floor = 0.0
    if dtype != "float32" or not reference.large:  # a large model is computed in 32 bits both times
        floor = float((reference.scores(sequences, dtype, native=True) - exact).abs().mean())
        floor *= _DEEP if reference.large else 1.0
    return Scores(reference, sequences, engine, dtype, exact, max(floor, _LEAST_FLOOR))


def compare_in_best_type(reference: Reference, sequences: Sequences, engine: Any, dtype: str) -> Scores:
    """Compare in the dtype that the server reports, else in the finest one whose rounding explains the difference.

    If none does, the weights differ. Then the coarsest dtype is used, so that a wrong guess of the dtype is never a
    fault.
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


@dataclass(frozen=True)
class Slope:
    """The engine's position on the line from one checkpoint (0) to another (1).

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
