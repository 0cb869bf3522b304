"""P1: whether the engine's weights are the checkpoint's.

What is scored are ids that the audit chose, so that no sampling parameter and no template has a say.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from diagnostics.audit.live import instead, others, precision
from diagnostics.audit.live.cutting import CUT, ROUNDED
from diagnostics.audit.model import CLEAN, NOT_DECIDED, Fact, ProbeAnswer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.audit.live.others import Compared
    from diagnostics.audit.live.precision import Scored
    from diagnostics.audit.live.reference import Reference


@dataclass
class Weighed:
    """What came of it, for what is asked next.

    Attributes:
        answers: One of the weights.
        holds: The weights that the engine computes with; None: nobody knows.
        dtype: The type it computes in.
        floor: What that makes.
        pictures: Differences by place, for a page.
    """

    answers: list[ProbeAnswer]
    holds: Reference | None
    dtype: str
    floor: float
    pictures: dict[str, Any] = field(default_factory=dict)

    @property
    def explained(self) -> bool:
        """Whether some weights leave no more than arithmetic does."""
        left, alarm = self.answers[0].residual, self.answers[0].alarm
        return self.holds is not None and left is not None and alarm is not None and left <= alarm


def weigh(
    reference: Reference,
    against: Sequence[Reference],
    sequences: Sequence[Sequence[int]],
    engine: Any,
    dtype: str = "",
    staleness: int = 0,
) -> Weighed:
    """Judges scores of the engine.

    Args:
        reference: The weights that it should hold.
        against: Weights that it may hold, the likeliest first.
        sequences: What was scored.
        engine: What the engine says of each id but the first of each, one after the other.
        dtype: The type it computes in; empty: not known.
        staleness: How many of the others, the nearest first, are no fault.
    """
    best = precision.in_its_type(reference, sequences, engine, dtype)
    found = _weighed(best, against, staleness)
    open_ = found.answers[0].outcome == NOT_DECIDED
    if best.dtype != ROUNDED or (found.explained and not open_):
        return found
    # What no weights explain may be kernels that cut numbers off; then that has to explain all but the same floor.
    cut = replace(best, dtype=CUT, exact=reference.scores(sequences, CUT))
    again = _weighed(cut, against, staleness)
    # Of two that are open the plain one.
    return again if again.explained and not (open_ and again.answers[0].outcome == NOT_DECIDED) else found


def _weighed(best: Scored, against: Sequence[Reference], staleness: int) -> Weighed:
    """By a type, and its floor."""
    weighed = Weighed([], best.reference, best.dtype, best.floor)
    compared = others.compared(best, against)
    weighed.pictures = _pictures(best, compared)
    answer = ProbeAnswer(
        "weights", CLEAN, "P1", residual=best.off, floor=best.floor, alarm=best.limit, count=len(best.engine),
        decisive=True,
    )  # fmt: skip
    named = instead.named(best, compared.told)
    if named.answer is not None:
        answer = instead.allowed(named.answer, against, staleness)
        weighed.holds, weighed.floor = named.holds, named.answer.floor or best.floor
    elif best.off > best.limit:
        answer, weighed.holds = instead.unknown(answer, best, compared.told)
    elif not best.at_floor:
        # Three times as many ids: about half of the tokens are scored.
        more = len(best.engine) * 5
        answer = replace(answer, outcome=NOT_DECIDED, wanted=(Fact("more_tokens", {"tokens": more}),))
    kept = Fact("type", {"dtype": best.dtype, "kept": best.reference.dtype})
    weighed.answers = [replace(answer, facts=(*answer.facts, kept, *compared.facts, *named.facts))]
    return weighed


def _pictures(best: Scored, compared: Compared) -> dict[str, Any]:
    """Numbers that a page draws."""
    rows = best.difference.abs().split([len(one) - 1 for one in best.sequences])
    shortest = min(len(one) for one in rows)
    position = sum(one[:shortest] for one in rows) / len(rows)
    off = {each.name: best.off_from(exact) for each, exact in compared.told}
    return {
        "difference": [round(one, 7) for one in best.difference.tolist()[:2000]],
        "position": [round(one, 7) for one in position.tolist()],
        "versions": {best.reference.name: best.off, **off},
        "floor": best.floor,
    }
