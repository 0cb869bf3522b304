"""An engine around an engine: all its calls but sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from grpo_core.rollout.engine import Capabilities


class WrappedEngine:
    """Does as the engine in it does."""

    def __init__(self, engine: Any) -> None:
        """Wraps an engine."""
        self.name: str = engine.name
        self.capabilities: Capabilities = engine.capabilities
        self._engine = engine

    @property
    def policy_version(self) -> int:
        """The engine's."""
        return int(self._engine.policy_version)

    def abort(self) -> None:
        """From another thread: ends the running call."""
        self._engine.abort()

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """The engine's."""
        self._engine.update_weights(tensors, version)

    def reset_prefix_cache(self) -> None:
        """The engine's."""
        self._engine.reset_prefix_cache()

    def fingerprint(self) -> str | None:
        """The engine's."""
        digest = self._engine.fingerprint()
        return None if digest is None else str(digest)

    def sleep(self) -> None:
        """The engine's, where it can."""
        self._engine.sleep()

    def wake(self) -> None:
        """The engine's, where it can."""
        self._engine.wake()

    def close(self) -> None:
        """The engine's."""
        self._engine.close()
