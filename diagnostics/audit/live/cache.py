"""P2: whether keys of older weights are served, by the same prompt plain and with a fresh salt.

It is asked before anything else that has these ids: what the audit itself had put into the cache would be the new
weights' keys, and prove nothing.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics.audit.model import CLEAN, FAULT, MASKED, NOT_ASKED, Fact, ProbeAnswer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.audit.live.endpoints import VllmServe

_ALARM = 6.0
# Of the likeliest few alone: the log-probs of the others differ by more, and say less.
_LIKELIEST = 8
# From here on it may be a fault, whatever the type.
_LOOK_AGAIN = 1e-4


@dataclass(frozen=True)
class Twins:
    """What came of prompts that were asked twice.

    Attributes:
        worst: By how much what comes next differs at most, on average of the likeliest ids.
        prompts: How many there were.
        hit: Whether the plain ones were found in the cache; None where nothing tells.
        tokens: What it cost.
        itself: By how much the one that differs most, asked plain twice more, differs from itself.
    """

    worst: float
    prompts: int
    hit: bool | None
    tokens: int
    itself: float = 0.0


def looked(endpoint: VllmServe, prompts: Sequence[Sequence[int]]) -> Twins:
    """Asks for what comes next after long prompts, plain first."""
    before, cost = endpoint.cache_hits(), endpoint.client.tokens
    differences = []
    for prompt in prompts:
        plain, salted = endpoint.after(prompt), endpoint.after(prompt, secrets.token_hex(8))
        differences.append(_apart(plain, salted))
    after = endpoint.cache_hits()
    hit = None if before is None or after is None else after > before
    worst = max(differences, default=0.0)
    # Two servers behind one address differ as well, and each from itself: then it says nothing of a cache.
    again = list(prompts[differences.index(worst)]) if worst > _LOOK_AGAIN else []
    itself = _apart(endpoint.after(again), endpoint.after(again)) if again else 0.0
    return Twins(worst, len(differences), hit, endpoint.client.tokens - cost, itself)


def _apart(one: dict[int, float], other: dict[int, float]) -> float:
    """How far the likeliest ids are apart."""
    near = sorted(one.keys() & other.keys(), key=lambda token: -other[token])[:_LIKELIEST]
    # Nothing in common among the likeliest: as far apart as can be.
    apart = [abs(one[token] - other[token]) for token in near] or [9.0]
    return sum(apart) / len(apart)


def judged(twins: Twins, floor: float) -> ProbeAnswer:
    """The answer, by what arithmetic makes of a log-prob."""
    limit = _ALARM * max(floor, 1e-5)
    seen = Fact("twins", {"worst": twins.worst, "prompts": twins.prompts})
    if twins.worst <= limit and twins.hit is not True:
        return ProbeAnswer("cache", NOT_ASKED, "P2", wanted=(Fact("nothing_cached"),), tokens=twins.tokens)
    if twins.worst > limit and twins.itself > limit:
        return ProbeAnswer("cache", MASKED, "P2", by="replicas/weights", tokens=twins.tokens, facts=(seen,))
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
