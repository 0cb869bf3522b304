"""One id whose logit is changed: what is left of the others' shares tells which, and by how much."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnostics.audit.live.law import trimmed

if TYPE_CHECKING:
    from diagnostics.audit.live.law import Law, Seen

# Below so large a share, added up over all places, an id tells nothing of itself.
_LEAST = 0.5


def biased(seen: Seen, law: Law) -> Law | None:
    """The law with a bias on the id that explains most; None where no id has enough of a share.

    Where id b's logit is raised by x, every other log-prob falls by log(1 + p_b (e^x - 1)): over the places that is a
    line through nothing in p_b, whose slope is e^x - 1.
    """
    import torch

    whole = seen.whole(law)
    excess = (seen.logprobs(law) - seen.reported).clamp(-3, 3).exp() - 1
    size = int(seen.columns.max()) + 1
    shares = torch.zeros(len(seen.ids), size, dtype=torch.float64).scatter_(1, seen.columns, whole.exp())
    own = torch.zeros_like(shares, dtype=torch.bool).scatter_(1, seen.ids[:, None], True)
    shares = shares.masked_fill(own, 0.0)
    weight = shares.square().sum(0)
    slopes = ((shares * excess[:, None]).sum(0) / weight.clamp(min=1e-12)).clamp(min=-1.0)
    left = (excess[:, None] - shares * slopes).masked_fill(own, 0.0).square().sum(0)
    left = left.masked_fill(shares.sum(0) < _LEAST, float("inf"))
    token = int(left.argmin())
    if math.isinf(float(left[token])):
        return None
    value = math.log(max(float(slopes[token]) + 1, math.exp(-20.0)))
    tried = [replace(law, bias=(token, value + step)) for step in (-0.1, -0.03, 0.0, 0.03, 0.1)]
    best = min(tried, key=lambda each: trimmed(seen.off(each)))
    return min(
        (replace(law, bias=(token, (best.bias or (0, 0.0))[1] + step / 100)) for step in range(-5, 6)),
        key=lambda each: trimmed(seen.off(each)),
    )
