"""The model before training, for the KL to it."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpo_core.learn.batch import Batch


class ReferencePolicy:
    """The model before training."""

    def __init__(self, scorer: Any, adapters: Sequence[Any]) -> None:
        """Copies it; but with adapters, the model without them is the model before training."""
        self._adapters = adapters
        self._scorer = scorer if adapters else copy.deepcopy(scorer).requires_grad_(False)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def logprobs(self, rows: Batch, temperature: float) -> torch.Tensor:
        """Log-probs [B, T] of completions."""
        with ExitStack() as stack:
            for layer in self._adapters:
                layer.enable_adapters(enabled=False)
                stack.callback(layer.enable_adapters, enabled=True)
            return rows.scored(self._scorer, temperature)[0]
