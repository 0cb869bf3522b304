"""Check the prefix cache (P2) and the replicas (P14): equal ids must get equal log-probs, except for rounding.

P2 sends each prompt twice: without and with a random cache salt, which bypasses cached keys. `probe_cache` must run
before all other probes with these ids, which would fill the cache with keys of the current weights. `check_unchanged`
repeats one of these requests at the end: if its answer differs, the server changed during the audit. `check_cache`
judges after that, when the rounding error is known. P14 scores the same ids six times (`check_replicas`).
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from diagnostics.audit.live.probe_inputs import REPLICA_CALLS
from diagnostics.audit.live.reference import Sequences
from diagnostics.audit.live.vllm_server import Server
from diagnostics.audit.results import FAULT, NOT_DECIDED, Result, clean, fault, masked, note, skipped
from diagnostics.audit.training_curves import Curves

# Multiple of the rounding error above which the cache is faulty.
_CACHE_ALARM = 6.0
# Number of likeliest next ids that are compared, because rounding changes the log-probs of other ids more; difference
# of two answers without a common id.
_LIKELIEST, _NO_ID_IN_COMMON = 8, 9.0


@dataclass(frozen=True)
class CacheComparison:
    """Differences between the answers with and without the prefix cache.

    Attributes:
        worst: Largest mean log-prob difference of the likeliest next ids, over the prompts.
        prompts: Number of prompts.
        hit: Whether the server found prompts in its cache; None if unknown.
        tokens: Number of tokens that the comparison cost.
        prompt: The prompt with the largest difference.
        answer: The first answer to this prompt, without a salt.
    """

    worst: float
    prompts: int
    hit: bool | None
    tokens: int
    prompt: Sequence[int]
    answer: dict[int, float]


def probe_cache(server: Server, prompts: Sequences) -> CacheComparison:
    """Request the next ids after long prompts, first with the cache, then with a salt that bypasses it."""
    hits, cost = server.cache_hits(), server.client.tokens
    answers = [(server.next_ids(prompt), server.next_ids(prompt, secrets.token_hex(8))) for prompt in prompts]
    later = server.cache_hits()
    hit = None if hits is None or later is None else later > hits
    distances = [_distance(*pair) for pair in answers]
    index = distances.index(max(distances))
    cost = server.client.tokens - cost
    return CacheComparison(distances[index], len(prompts), hit, cost, prompts[index], answers[index][0])


def check_unchanged(server: Server, comparison: CacheComparison, floor: float) -> Result | None:
    """Repeat a request of `probe_cache` at the end of the audit; return a fault if its answer differs, or None."""
    off = _distance(comparison.answer, server.next_ids(comparison.prompt))
    if off <= _CACHE_ALARM * max(floor, 1e-5):
        return None
    evidence = (note("repeated"), *Curves(()).causes("server_changed"))
    return fault("replicas/changed", {"off": off}, residual=off, floor=floor, evidence=evidence, count=2)


def _distance(plain: dict[int, float], salted: dict[int, float]) -> float:
    """Return the mean log-prob difference of the 8 likeliest ids that both answers have; 9 if they have none."""
    likeliest = sorted(plain.keys() & salted.keys(), key=lambda token: -salted[token])[:_LIKELIEST]
    differences = [abs(plain[token] - salted[token]) for token in likeliest] or [_NO_ID_IN_COMMON]
    return sum(differences) / len(differences)


def check_cache(comparison: CacheComparison, floor: float, hiding: str = "") -> Result:
    """Return a fault if the answers differ; `floor` is the rounding error of a log-prob.

    If they agree, the result is clean if a prompt is known to have been in the cache, else skipped. A fault of family
    `hiding` masks a difference, because other servers answered.
    """
    limit = _CACHE_ALARM * max(floor, 1e-5)
    if comparison.worst <= limit and comparison.hit is not True:
        return replace(skipped("cache", "nothing_cached"), tokens=comparison.tokens)
    fact = note("twins", worst=comparison.worst, prompts=comparison.prompts)
    fields: dict[str, Any] = {"tokens": comparison.tokens, "evidence": (fact,)}
    if comparison.worst > limit and hiding:
        return masked("cache", hiding, **fields)
    fields |= {"residual": comparison.worst, "floor": floor, "alarm": limit, "count": comparison.prompts}
    return clean("cache", **fields) if comparison.worst <= limit else fault("cache/stale", **fields)


def check_replicas(server: Server, ids: Sequence[int], exact: Any, floor: float, alarm: float) -> Result:
    """Score the same ids several times, and check that all answers come from the same weights.

    Args:
        server: The server; several may answer behind its address.
        ids: A short sequence.
        exact: Log-probs computed with the weights that the engine has; None to compare the answers with each other.
        floor: Difference that rounding alone causes.
        alarm: Smallest fault threshold. The threshold is at least twice the best answer's difference, and a fault needs
            answers that differ by half of `alarm`.
    """
    import torch

    rows = [torch.tensor(server.score(ids), dtype=torch.float64) for _ in range(REPLICA_CALLS)]
    against = rows[0] if exact is None else exact
    residuals = [float((row - against).abs().mean()) for row in rows]
    least, most = min(residuals), max(residuals)
    # The rounding error of a short sequence may exceed the mean, so the limit depends on the best answer.
    limit = max(alarm, 2.0 * least)
    fields: dict[str, Any] = {"floor": floor, "alarm": limit, "count": len(rows)}
    if most <= limit or most - least <= 0.5 * alarm:
        return clean("replicas", residual=None if exact is None else most, **fields)
    return fault("replicas/weights", {"residual": most, "first": least}, residual=most, **fields)


def hides_weights(replicas: Result, weights: Result) -> bool:
    """Return whether the weights cannot be identified because servers with different weights answer in turn."""
    return replicas.is_fault and weights.outcome in (FAULT, NOT_DECIDED)
