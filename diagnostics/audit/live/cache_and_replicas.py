"""Check the prefix cache (P2) and the replicas (P14): equal ids must get equal log-probs, except for rounding.

P2 sends each prompt twice: without and with a fresh cache salt, which bypasses cached keys. If answers differ, the
worst prompt is sent twice more. `probe_cache` must run before all other probes with these ids, which would fill the
cache with keys of the current weights. `check_cache` judges later, when the rounding error is known. P14 scores the
same ids six times.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from diagnostics.audit.live.probe_inputs import CALLS
from diagnostics.audit.live.reference import Sequences
from diagnostics.audit.live.vllm_server import Server
from diagnostics.audit.results import FAULT, NOT_DECIDED, Result, clean, fault, masked, note, skipped

# Multiple of the rounding error above which the cache is faulty.
_CACHE_ALARM = 6.0
# Number of likeliest next ids that are compared, because rounding changes the log-probs of other ids more; difference
# of two answers without a common id.
_LIKELIEST, _NO_ID_IN_COMMON = 8, 9.0
# Difference from which on the prompt is sent again, because the cache may be faulty.
_SUSPICIOUS = 1e-4


@dataclass(frozen=True)
class CacheComparison:
    """Differences between the answers with and without the prefix cache.

    Attributes:
        worst: Largest mean log-prob difference of the likeliest next ids, over the prompts.
        prompts: Number of prompts.
        hit: Whether the server found prompts in its cache; None if unknown.
        tokens: Number of tokens that the comparison cost.
        repeated: Difference between two further cached answers to the worst prompt; 0 if `worst` is small.
    """

    worst: float
    prompts: int
    hit: bool | None
    tokens: int
    repeated: float = 0.0


def probe_cache(server: Server, prompts: Sequences) -> CacheComparison:
    """Request the next ids after long prompts, first with the cache, then with a salt that bypasses it."""
    hits, cost = server.cache_hits(), server.client.tokens
    distances = [
        _distance(server.next_ids(prompt), server.next_ids(prompt, secrets.token_hex(8)))
        for prompt in prompts
    ]
    later = server.cache_hits()
    hit = None if hits is None or later is None else later > hits
    worst, repeated = max(distances, default=0.0), 0.0
    if worst > _SUSPICIOUS:  # two servers behind one address differ too, and each from itself
        prompt = prompts[distances.index(worst)]
        repeated = _distance(server.next_ids(prompt), server.next_ids(prompt))
    return CacheComparison(worst, len(distances), hit, server.client.tokens - cost, repeated)


def _distance(plain: dict[int, float], salted: dict[int, float]) -> float:
    """Return the mean log-prob difference of the 8 likeliest ids that both answers have; 9 if they have none."""
    likeliest = sorted(plain.keys() & salted.keys(), key=lambda token: -salted[token])[:_LIKELIEST]
    differences = [abs(plain[token] - salted[token]) for token in likeliest] or [_NO_ID_IN_COMMON]
    return sum(differences) / len(differences)


def check_cache(comparison: CacheComparison, floor: float) -> Result:
    """Return the result of the comparison; `floor` is the rounding error of a log-prob.

    Skipped if the answers agree and no cache hit is known; masked if repeated answers differ too, as those of replicas.
    """
    limit = _CACHE_ALARM * max(floor, 1e-5)
    if comparison.worst <= limit and comparison.hit is not True:
        need = ("prompts of the run (`prompts` in --trainer-config), or the same audit after the next weights: none of"
                " these prompts was in the cache")  # fmt: skip
        return replace(skipped("cache", "nothing_cached", need), tokens=comparison.tokens)
    text = "{prompts} prompts, plain and with a fresh salt: the next ids' log-probs differ by {worst:.2g} at most"
    fact = note("twins", text, worst=comparison.worst, prompts=comparison.prompts)
    fields: dict[str, Any] = {"tokens": comparison.tokens, "evidence": (fact,)}
    if comparison.worst > limit and comparison.repeated > limit:
        return masked("cache", "replicas/weights", **fields)
    fields |= {"residual": comparison.worst, "floor": floor, "alarm": limit, "count": comparison.prompts}
    if comparison.worst <= limit:
        return clean("cache", **fields)
    text = "keys of older weights are served from the prefix cache: a cached prompt differs from the same uncached one"
    return fault("cache/stale", text, "SYN001", **fields)


def check_replicas(server: Server, ids: Sequence[int], exact: Any, floor: float, alarm: float) -> Result:
    """Score the same ids several times, and check that all answers come from the same weights.

    Args:
        server: The server; several may answer behind its address.
        ids: A short sequence.
        exact: Log-probs computed with the weights that the engine has; None to compare the answers with each other.
        floor: Difference that rounding alone causes.
        alarm: Fault threshold: a larger difference is a fault.
    """
    import torch

    rows = [torch.tensor(server.score(ids), dtype=torch.float64) for _ in range(CALLS)]
    against = rows[0] if exact is None else exact
    residuals = [float((row - against).abs().mean()) for row in rows]
    least, most = min(residuals), max(residuals)
    # The rounding error of a short sequence may exceed the mean, so the limit depends on the best answer.
    limit = max(alarm, 2.0 * least)
    text = "{count} calls with the same ids: off by {least:.2g} to {most:.2g}"
    fact = note("calls", text, count=len(rows), least=least, most=most)
    fields: dict[str, Any] = {"floor": floor, "alarm": limit, "count": len(rows), "evidence": (fact,)}
    if most <= limit or most - least <= 0.5 * alarm:
        residual = None if exact is None else most
        return clean("replicas", residual=residual, **fields)
    message = "replicas behind the address answer differently: one is {residual:.3g} off, another {first:.3g}"
    values = {"residual": most, "first": least}
    return fault("replicas/weights", message, "", values, residual=most, **fields)


def hides_weights(replicas: Result, weights: Result) -> bool:
    """Return whether the weights cannot be identified because servers with different weights answer in turn."""
    return replicas.is_fault and weights.outcome in (FAULT, NOT_DECIDED)
