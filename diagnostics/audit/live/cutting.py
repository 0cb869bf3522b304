"""Kernels that cut a number to 16 bits in place of rounding it: what that makes on average, put into a model.

vLLM's CPU builds of 0.10 and 0.11 do so in norms, sums, rotations and activations (the conversion in its
csrc/cpu/cpu_types_x86.hpp where the build has no AVX512_BF16): every number loses, none gains, and a healthy engine is
2.5 times as far off as one that rounds.
"""

from __future__ import annotations

import math
from typing import Any

# A type beside those of torch, and the one in which its weights are.
CUT, ROUNDED = "bfloat16, cut off in place of rounded", "bfloat16"
# Half of the last of 8 bits, of a number whose digits are spread as the logarithm is.
_LOST = 0.5 * 2**-7 * 0.5 / math.log(2)
# Of a sum of two numbers of 8 bits there is less to lose: so much fitted what a released engine was off by.
_LOST_OF_SUM = 0.002


def fit(model: Any) -> Any:
    """Has each module answer so much less as its engine's kernels lose."""
    added, sums = 0, False
    for name, module in model.named_modules():
        last, share = name.rpartition(".")[2], 1.0
        if "RMSNorm" in type(module).__name__:
            share -= _LOST
            if last in ("q_norm", "k_norm"):
                share -= _LOST  # and rotated
            elif sums:
                share -= _LOST_OF_SUM  # the first is of no sum
            sums = sums or last not in ("q_norm", "k_norm")
        elif last in ("q_proj", "k_proj", "down_proj"):
            share -= _LOST  # rotated afterwards; activated before
        if last in ("o_proj", "down_proj"):
            # What the sum loses with each that is added, the later ones have more: norms see no difference.
            share *= (1 - _LOST_OF_SUM) ** -added
            added += 1
        if share != 1:
            module.register_forward_hook(_less(share))
    return model


def _less(share: float) -> Any:
    def hook(_module: Any, _given: Any, answer: Any) -> Any:
        return answer * share

    return hook
