"""Compare the engine's scores with a checkpoint's: how far rounding alone may be off, and when it is a fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diagnostics.audit.live.reference import DTYPES, ROUNDED, TRUNCATED, Reference, Sequences

# Factors of the floor for an alarm, and for an open result. A correct 16-bit engine is off by 0.9 to 1.2 times
# what PyTorch is; 32-bit kernels differ more among themselves, and by less than matters. Of engines that truncate,
# 1.3 floors
# remain.
ALARM = {"float32": 12.0, "bfloat16": 1.6, "float16": 1.6, TRUNCATED: 1.6}
OPEN = {"float32": 6.0, "bfloat16": 1.3, "float16": 1.3, TRUNCATED: 1.45}
_LEAST_FLOOR = 2e-6
# Kernels of many layers differ more: a correct engine of 24 layers was off by 1.42 times what PyTorch is.
_DEEP = 1.4


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
    def factor(self) -> float:
        """Return the residual as a multiple of the floor."""
        return self.residual / self.floor

    @property
    def limit(self) -> float:
        """Return the residual from which on it is a fault."""
        return ALARM[self.dtype] * self.floor

    @property
    def at_floor(self) -> bool:
        """Return whether rounding alone explains the residual."""
        return self.factor <= OPEN[self.dtype]

    def residual_of(self, exact: Any) -> float:
        """Return the engine's mean absolute difference from other weights' log-probs."""
        return float((self.engine - exact).abs().mean())

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
    """Compare in the type that the server names, else in the finest type at whose floor the engine is.

    Of wrong weights no type is: then in the coarsest, so that a type is never a fault.
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
    dtype = ROUNDED if scores.dtype == TRUNCATED else scores.dtype
    return max(scores.floor, compare(other, scores.sequences, scores.engine, dtype).floor)
