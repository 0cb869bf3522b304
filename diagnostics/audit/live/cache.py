"""P2: whether keys of older weights are served, by the same prompt plain and with a fresh salt.

It is asked before anything else that has these ids: what the audit itself had put into the cache would be the new
weights' keys, and prove nothing.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics.audit.model import CLEAN, FAULT, NOT_ASKED, Fact, ProbeAnswer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.audit.live.endpoints import VllmServe

_ALARM = 6.0
# Of the likeliest few alone: the log-probs of the others differ by more, and say less.
_LIKELIEST = 8


@dataclass(frozen=True)
class Twins:
    """What came of prompts that were asked twice.

    Attributes:
        worst: By how much what comes next differs at most, on average of the likeliest ids.
        prompts: How many there were.
        hit: Whether the plain ones were found in the cache; None where nothing tells.
        tokens: What it cost.
    """

    worst: float
    prompts: int
    hit: bool | None
    tokens: int


def looked(endpoint: VllmServe, prompts: Sequence[Sequence[int]]) -> Twins:
    """Asks for what comes next after long prompts, plain first."""
    before, cost = endpoint.cache_hits(), endpoint.client.tokens
    differences = []
    for prompt in prompts:
        plain = endpoint.after(prompt)
        salted = endpoint.after(prompt, secrets.token_hex(8))
        near = sorted(plain.keys() & salted.keys(), key=lambda token: -salted[token])[:_LIKELIEST]
        # Nothing in common among the likeliest: as far apart as can be.
        apart = [abs(plain[token] - salted[token]) for token in near] or [9.0]
        differences.append(sum(apart) / len(apart))
    after = endpoint.cache_hits()
    hit = None if before is None or after is None else after > before
    return Twins(max(differences, default=0.0), len(differences), hit, endpoint.client.tokens - cost)


def judged(twins: Twins, floor: float) -> ProbeAnswer:
    """The answer, by what arithmetic makes of a log-prob."""
    limit = _ALARM * max(floor, 1e-5)
    seen = Fact("twins", {"worst": twins.worst, "prompts": twins.prompts})
    if twins.worst <= limit and twins.hit is not True:
        return ProbeAnswer("cache", NOT_ASKED, "P2", wanted=(Fact("nothing_cached"),), tokens=twins.tokens)
    stale = twins.worst > limit
    return ProbeAnswer(
        "cache/stale" if stale else "cache",
        FAULT if stale else CLEAN,
        "P2",
        code="SYN001" if stale else "",
        residual=twins.worst,
        floor=floor,
        alarm=limit,
        count=twins.prompts,
        tokens=twins.tokens,
        facts=(seen,),
    )
