"""Kernels that truncate numbers to 16 bits instead of rounding them: model their mean error.

vLLM's CPU builds 0.10 and 0.11 do so in norms, sums, rotations and activations (the conversion in
csrc/cpu/cpu_types_x86.hpp of builds without AVX512_BF16). Every number loses and none gains, so a healthy engine is 2.5
times as far off as one that rounds.
"""

from __future__ import annotations

import math
from typing import Any

# A type of its own next to torch's, and the type of its weights.
TRUNCATED, ROUNDED = "bfloat16, cut off in place of rounded", "bfloat16"
# Half of the last of 8 bits, for numbers whose digits are distributed logarithmically; and, fitted to a released
# engine, of a sum of two such numbers.
_LOSS = 0.5 * 2**-7 * 0.5 / math.log(2)
_SUM_LOSS = 0.002


def apply(model: Any) -> Any:
    """Scale the output of each module by what its kernels lose."""
    additions, after_sum = 0, False
    for name, module in model.named_modules():
        last, factor = name.rpartition(".")[2], 1.0
        if "RMSNorm" in type(module).__name__:
            factor -= _LOSS
            if last in ("q_norm", "k_norm"):
                factor -= _LOSS  # and rotated
            else:
                factor -= _SUM_LOSS if after_sum else 0.0
                after_sum = True
        elif last in ("q_proj", "k_proj", "down_proj"):
            factor -= _LOSS  # rotated or activated afterwards
        if last in ("o_proj", "down_proj"):
            # Norms do not see what the residual sum loses, so later layers weigh more.
            factor *= (1 - _SUM_LOSS) ** -additions
            additions += 1
        if factor != 1:
            module.register_forward_hook(lambda _module, _inputs, output, factor=factor: output * factor)
    return model
