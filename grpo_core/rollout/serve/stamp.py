"""Which update an answer rests on: a version's number does not tell one client's weights from another's."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from grpo_core.rollout.engine import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from grpo_core.rollout.engine import Engine


class Stamped:
    """An engine whose weights have a stamp; all else is the engine's own.

    Attributes:
        weights: A new text at every update, which its sender is given, and every answer has: whoever finds
            another one in an answer was answered from weights of somebody else. Empty before the first update.
    """

    def __init__(self, engine: Engine) -> None:
        """Takes an engine as it was built."""
        self._engine, self.weights = engine, ""

    def __getattr__(self, name: str) -> Any:
        """Everything else of the engine."""
        return getattr(self._engine, name)

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """As the engine's. An update that it refuses changes nothing, the stamp neither."""
        before, self.weights = self.weights, secrets.token_hex(8)
        try:
            self._engine.update_weights(tensors, version)
        except EngineError:
            self.weights = before
            raise
