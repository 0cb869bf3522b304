"""Log-probs of temperature 1 where another was asked for: raw ones, or those of an engine that samples so.

What is reported is the same in both; the sampled ids alone tell.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnostics.audit.live.law import Law
from diagnostics.audit.model import FAULT, MASKED, Estimate, Fact, ProbeAnswer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diagnostics.audit.live.fit import Fitted
    from diagnostics.audit.live.law import Seen

# Temperatures that are nearer than this, as logarithms, are one.
_SAME = 0.03
# Below these odds the other is said to be possible.
_SURE = math.log(20)
_LAW = "sampling/temperature"


def settled(
    seen: Seen,
    found: Fitted,
    expected: Law,
    mode: str,
    law: Sequence[ProbeAnswer],
    of_ids: Sequence[ProbeAnswer],
) -> tuple[list[ProbeAnswer], list[ProbeAnswer]]:
    """One cause in place of two, or of the wrong one.

    Args:
        seen: The samples.
        found: The law of what is reported.
        expected: The law that was asked for.
        mode: What the server says that its log-probs are; empty: nothing.
        law: The answers of the law.
        of_ids: Those of the ids.
    """
    heat = math.log(expected.temperature / found.law.temperature)
    plain = replace(found.law, temperature=1.0) == Law() and abs(math.log(found.law.temperature)) < _SAME
    if found.changed != ("temperature",) or not plain or abs(heat) < _SAME:
        return [*law], [*of_ids]
    free = replace(expected, top_p=1.0, top_k=0, min_p=0.0)
    odds = float((seen.logprobs(free) - seen.logprobs(found.law)).sum())
    is_raw = mode.startswith("raw") or (odds > 0 and not mode.startswith("processed"))
    unsure = (
        []
        if mode or abs(odds) > _SURE
        else [_unsure(math.exp(abs(odds)), found.law, expected, is_raw=is_raw)]
    )
    if is_raw:
        hidden = ProbeAnswer("sampling", MASKED, "P5", by="logprobs/raw")
        others = [each for each in of_ids if each.family.partition("/")[0] != "logprobs"]
        kept = [hidden if each.family == _LAW else each for each in law]
        return kept, [*others, told(seen, found.law, expected, *unsure)]
    doubted = [replace(each, facts=(*each.facts, *unsure)) if each.family == _LAW else each for each in law]
    return doubted, [each for each in of_ids if each.family != "logprobs/raw"]


def _unsure(odds: float, law: Law, expected: Law, *, is_raw: bool) -> Fact:
    """What else it may be."""
    if is_raw:
        return Fact("raw_unsure", {"odds": odds, "temperature": law.temperature})
    return Fact("law_unsure", {"odds": odds, "temperature": expected.temperature})


def told(seen: Seen, law: Law, expected: Law, *facts: Fact) -> ProbeAnswer:
    """That they are raw, and what the ids were sampled at."""
    value, error = drawn_at(seen, law)
    sampled = Estimate(
        "sampled at temperature", value, value - 2 * error, value + 2 * error, expected.temperature
    )
    return ProbeAnswer(
        "logprobs/raw", FAULT, "P6", code="NUM001", values={"value": value, "reported": law.temperature},
        estimates=(sampled,), facts=facts, count=len(seen.ids),
    )  # fmt: skip


def drawn_at(seen: Seen, law: Law) -> tuple[float, float]:
    """The temperature under which the sampled ids are likeliest, with a deviation."""
    free = replace(law, top_p=1.0, top_k=0, min_p=0.0)

    def likely(log_t: float) -> float:
        return float(seen.logprobs(free.with_("temperature", math.exp(log_t))).sum())

    low, high = math.log(0.05), math.log(5.0)
    for _ in range(40):
        one, other = low + (high - low) / 3, high - (high - low) / 3
        if likely(one) < likely(other):
            low = one
        else:
            high = other
    best, step = (low + high) / 2, 0.02
    bend = (likely(best - step) - 2 * likely(best) + likely(best + step)) / step**2
    return math.exp(best), math.exp(best) / math.sqrt(max(-bend, 1e-9))
