"""What other checkpoints say of the scored ids: all of what they can decide, and no more.

A forward of a small one is free. Of a large one it takes a quarter of an audit; and where the checkpoint's own weights
leave no more than arithmetic does, others can be the engine's only if they are about as near: few ids tell which are
not, and what is farther from it in training than one that is not, is not asked at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diagnostics.audit.model import Fact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.audit.live.precision import Scored
    from diagnostics.audit.live.reference import Reference

# An engine that is nearer to another checkpoint than to this one is off by more than half of what lies between the two:
# where few ids show more than that between them, and some for chance, all would tell the same.
FEW, AWAY = 64, 2.5


@dataclass
class Compared:
    """What became of the others.

    Attributes:
        told: Each with what it says of all the ids.
        facts: Why the rest of them was not, or not wholly, computed.
    """

    told: list[tuple[Reference, Any]] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)


def compared(best: Scored, others: Sequence[Reference]) -> Compared:
    """Computes them, one in memory at a time.

    Args:
        best: The checkpoint.
        others: The likeliest first.
    """
    found, near = Compared(), max(best.off, best.floor)
    away: list[Reference] = []
    for each in others:
        if nearer := next((one for one in away if _behind(each, one, best.reference)), None):
            found.facts.append(Fact("not_compared", {"name": each.name, "nearer": nearer.name}))
        elif not best.reference.fits(each):
            found.facts.append(Fact("does_not_fit", {"name": each.name}))
        elif best.reference.large and best.at_floor and (apart := _few(best, each)) > AWAY * near:
            away.append(each)
            values = {"name": each.name, "apart": apart, "count": FEW, "times": apart / best.floor}
            found.facts.append(Fact("away", values))
        else:
            found.told.append((each, each.scores(best.sequences, best.dtype)))
        each.release()
    return found


def _few(best: Scored, other: Reference) -> float:
    """How far another is from the checkpoint, by the first ids."""
    exact = other.scores([best.sequences[0][: FEW + 1]], best.dtype)
    return float((exact - best.exact[: len(exact)]).abs().mean())


def _behind(other: Reference, nearer: Reference, reference: Reference) -> bool:
    """Whether training went over one on the way between another and the checkpoint."""
    if other.step is None or nearer.step is None or reference.step is None:
        return False
    return other.step < nearer.step < reference.step or reference.step < nearer.step < other.step
