"""What arithmetic alone makes: how far an engine of a type may be off and still be right, and what is an alarm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diagnostics.audit.live.cutting import CUT, ROUNDED
from diagnostics.audit.live.reference import DTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.audit.live.reference import Reference

# How many times the floor is an alarm, and how many leave it open. An engine of 16 bits is off by 0.9 to 1.2 times what
# the same forward in PyTorch is; kernels of 32 bits differ more among themselves, and by less than matters. Of one that
# cuts numbers off 1.3 times the floor is left when what that makes on average is taken away.
ALARM = {"float32": 12.0, "bfloat16": 1.6, "float16": 1.6, CUT: 1.6}
OPEN = {"float32": 6.0, "bfloat16": 1.3, "float16": 1.3, CUT: 1.45}
_LEAST_FLOOR = 2e-6
# Kernels of many layers differ by more from one another: a right engine of 24 was off by 1.42 times what PyTorch is.
_DEEPER = 1.4


@dataclass(frozen=True)
class Scored:
    """Ids that an engine scored, beside what a checkpoint says of them in a type.

    Attributes:
        reference: The checkpoint.
        sequences: The ids.
        engine: What the engine says of each id but the first of each sequence, one after the other.
        dtype: The type.
        exact: What the checkpoint says of them.
        floor: How far the type is from itself.
    """

    reference: Reference
    sequences: Sequence[Sequence[int]]
    engine: Any
    dtype: str
    exact: Any
    floor: float

    @property
    def difference(self) -> Any:
        """The engine's less the checkpoint's."""
        return self.engine - self.exact

    @property
    def off(self) -> float:
        """How far the engine is from the checkpoint."""
        return self.off_from(self.exact)

    @property
    def times(self) -> float:
        """That, in floors."""
        return self.off / self.floor

    @property
    def limit(self) -> float:
        """From which difference on it is an alarm."""
        return ALARM[self.dtype] * self.floor

    @property
    def at_floor(self) -> bool:
        """Whether arithmetic alone is enough to explain it."""
        return self.times <= OPEN[self.dtype]

    def off_from(self, exact: Any) -> float:
        """How far the engine is from what other weights say."""
        return float((self.engine - exact).abs().mean())


def scored(
    reference: Reference, sequences: Sequence[Sequence[int]], engine: Any, dtype: str, exact: Any = None
) -> Scored:
    """Beside a checkpoint in a type."""
    exact = reference.scores(sequences, dtype) if exact is None else exact
    floor = 0.0
    # Of a large one both are computed in 32 bits, then.
    if dtype != "float32" or not reference.large:
        floor = float((reference.scores(sequences, dtype, native=True) - exact).abs().mean())
        floor *= _DEEPER if reference.large else 1.0
    return Scored(reference, sequences, engine, dtype, exact, max(floor, _LEAST_FLOOR))


def in_its_type(reference: Reference, sequences: Sequence[Sequence[int]], engine: Any, dtype: str) -> Scored:
    """By the type that the server names; else the finest of those in which it is at the floor."""
    if dtype in DTYPES:
        return scored(reference, sequences, engine, dtype)
    found = first = scored(reference, sequences, engine, "float32")
    # Of a large checkpoint nobody serves one half of 16 bits as the other, and each type takes its time.
    skipped = "float16" if reference.large and reference.dtype == "bfloat16" else ""
    for kind in ("float16", "bfloat16"):
        if found.at_floor:
            break
        if kind != skipped:
            # Weights that are kept in a type are not rounded to it.
            same = first.exact if reference.dtype == kind and not reference.has_adapter else None
            found = scored(reference, sequences, engine, kind, same)
    # Of wrong weights the differences say nothing of the type: then the coarsest floor, so that no type is a fault.
    return found


def floor_of(other: Reference, by: Scored) -> float:
    """What arithmetic makes of other weights: of trained ones more than of those that know little yet."""
    dtype = ROUNDED if by.dtype == CUT else by.dtype
    return max(by.floor, scored(other, by.sequences, by.engine, dtype).floor)
