"""Turn a model's logits into those of the sampling distribution: repetition penalty, temperature, top-k, top-p, min-p.

The order is that of transformers. vLLM applies min-p before top-p, so a run's settings may not have both
(`config_checks`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpo_core.types import SamplingParams


class SamplingDistribution:
    """The distribution of the next token of each row; remembers the row's ids for the repetition penalty.

    B rows, V vocabulary.
    """

    def __init__(self, params: SamplingParams, prompts: Sequence[tuple[int, ...]]) -> None:
        """Start after the prompts, one per row."""
        self._params, self._prompts = params, prompts
        self._seen_BV: torch.Tensor | None = None

    def logits(self, logits_BV: torch.Tensor) -> torch.Tensor:
        """Return logits whose softmax is the distribution; ids that truncation excludes get minus infinity."""
        params, logits = self._params, logits_BV.float()
        if (penalty := params.repetition_penalty) != 1.0:
            penalised = torch.where(logits < 0, logits * penalty, logits / penalty)
            logits = torch.where(self._seen(logits), penalised, logits)
        if params.temperature != 1.0:
            logits = logits / params.temperature
        if params.top_k:
            smallest_B1 = logits.topk(min(params.top_k, logits.shape[-1])).values[:, -1:]
            logits = logits.masked_fill(logits < smallest_B1, -math.inf)
        if params.top_p < 1.0:
            ascending, order = logits.sort()
            removed = ascending.softmax(-1).cumsum(-1) <= 1 - params.top_p
            removed[:, -1] = False  # rounding must not remove the most probable id
            logits = logits.masked_fill(removed.scatter(1, order, removed), -math.inf)
        if params.min_p:
            probabilities = logits.softmax(-1)
            least_B1 = params.min_p * probabilities.amax(-1, keepdim=True)
            logits = logits.masked_fill(probabilities < least_B1, -math.inf)
        return logits

    def append(self, id_B: torch.Tensor) -> None:
        """Add these sampled ids to the seen ids, which the repetition penalty applies to."""
        if self._seen_BV is not None:
            self._seen_BV.scatter_(1, id_B[:, None], True)

    def _seen(self, logits_BV: torch.Tensor) -> torch.Tensor:
        """Return True at the ids of the prompt and the completion so far."""
        if self._seen_BV is None:
            self._seen_BV = torch.zeros_like(logits_BV, dtype=torch.bool)
            for row, ids in enumerate(self._prompts):
                self._seen_BV[row, [token for token in ids if token < logits_BV.shape[1]]] = True
        return self._seen_BV
