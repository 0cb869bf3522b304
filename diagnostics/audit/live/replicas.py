"""P14: whether all that answer hold the same weights: one prompt several times, and other servers beside the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.audit.live.budget import CALLS
from diagnostics.audit.model import CLEAN, FAULT, NOT_ASKED, NOT_DECIDED, Fact, ProbeAnswer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.audit.live.endpoints import Endpoint


def asked(
    endpoint: Endpoint, others: Sequence[Endpoint], ids: Sequence[int], exact: Any, floor: float, alarm: float
) -> ProbeAnswer:
    """Scores the same ids again and again.

    Args:
        endpoint: The server; several may answer behind its address.
        others: Servers that should be the same.
        ids: A short sequence.
        exact: What the weights say of it that the engine holds; None: nobody knows which. Then answers are held
            against each other alone.
        floor: What arithmetic makes.
        alarm: From where on it is a fault.
    """
    import torch

    rows = [torch.tensor(endpoint.score(ids), dtype=torch.float64) for _ in range(CALLS)]
    names = [f"call {place + 1}" for place in range(CALLS)]
    rows += [torch.tensor(other.score(ids), dtype=torch.float64) for other in others]
    names += [other.client.address for other in others]
    against = rows[0] if exact is None else exact
    told = [(name, float((row - against).abs().mean())) for name, row in zip(names, rows, strict=True)]
    least, most = min(told, key=lambda each: each[1]), max(told, key=lambda each: each[1])
    # A short sequence is off by more or less than the mean of all: its own best is what the others are held against.
    limit = max(alarm, 2.0 * least[1])
    facts: tuple[Fact, ...] = (Fact("calls", {"count": len(told), "least": least[1], "most": most[1]}),)
    if most[1] > limit and most[1] - least[1] > 0.5 * alarm:
        sets = _sets(rows[:CALLS], limit)
        if len(sets) > 1:
            facts += (Fact("behind", {"sets": " and ".join(map(str, sets)), "count": CALLS}),)
        values = {"other": most[0], "residual": most[1], "first": least[1]}
        return ProbeAnswer("replicas/weights", FAULT, "P14", values=values, residual=most[1], floor=floor,
                           alarm=limit, facts=facts, count=len(told))  # fmt: skip
    if exact is None:
        # Alike, and wrong: of which weights, and whether of the same everywhere, these few calls do not tell.
        return ProbeAnswer("replicas", CLEAN, "P14", floor=floor, alarm=limit, facts=facts, count=len(told))
    return ProbeAnswer("replicas", CLEAN, "P14", residual=most[1], floor=floor, alarm=limit, facts=facts,
                       count=len(told))  # fmt: skip


def _sets(rows: Sequence[Any], limit: float) -> list[int]:
    """How many answers of the same ids there are of each kind."""
    kinds: list[list[Any]] = []
    for row in rows:
        near = next((kind for kind in kinds if float((row - kind[0]).abs().mean()) <= limit), None)
        if near is None:
            kinds.append([row])
        else:
            near.append(row)
    return sorted((len(kind) for kind in kinds), reverse=True)


def hides(found: ProbeAnswer, weights: ProbeAnswer) -> bool:
    """Whether servers that answer by turns are why no weights explain the scores."""
    behind = any(each.name == "behind" for each in found.facts)
    return found.outcome == FAULT and behind and weights.outcome in (FAULT, NOT_DECIDED)


def missing(lacks: str) -> ProbeAnswer:
    """Where ids can't be scored."""
    return ProbeAnswer("replicas", NOT_ASKED, "P14", wanted=(Fact("endpoint_lacks", {"lacks": lacks}),))
