"""P14: whether all that answer hold the same weights: one prompt several times, and other servers beside the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.audit.live.budget import CALLS
from diagnostics.audit.model import CLEAN, FAULT, NOT_ASKED, Fact, ProbeAnswer

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
        exact: What the weights say of it.
        floor: What arithmetic makes.
        alarm: From where on it is a fault.
    """
    import torch

    told: list[tuple[str, float]] = []
    for place in range(CALLS):
        row = torch.tensor(endpoint.score(ids), dtype=torch.float64)
        told.append((f"call {place + 1}", float((row - exact).abs().mean())))
    for other in others:
        row = torch.tensor(other.score(ids), dtype=torch.float64)
        told.append((other.client.address, float((row - exact).abs().mean())))
    least, most = min(told, key=lambda each: each[1]), max(told, key=lambda each: each[1])
    # A short sequence is off by more or less than the mean of all: its own best is what the others are held against.
    limit = max(alarm, 2.0 * least[1])
    facts = (Fact("calls", {"count": len(told), "least": least[1], "most": most[1]}),)
    if most[1] > limit and most[1] - least[1] > 0.5 * alarm:
        values = {"other": most[0], "residual": most[1], "first": least[1]}
        return ProbeAnswer("replicas/weights", FAULT, "P14", values=values, residual=most[1], floor=floor,
                           alarm=limit, facts=facts, count=len(told))  # fmt: skip
    return ProbeAnswer("replicas", CLEAN, "P14", residual=most[1], floor=floor, alarm=limit, facts=facts,
                       count=len(told))  # fmt: skip


def missing(lacks: str) -> ProbeAnswer:
    """Where ids can't be scored."""
    return ProbeAnswer("replicas", NOT_ASKED, "P14", wanted=(Fact("endpoint_lacks", {"lacks": lacks}),))
