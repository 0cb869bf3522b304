"""The engine protocol: what samples completions, as the three rollout modes see it.

One engine has one owner: `generate` and `update_weights` are never called at the same time. An engine that
can't do something says so in `capabilities` before use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from grpo_core.types import Completion, Request, SamplingParams


class EngineError(RuntimeError):
    """Raised when an engine failed, refused or answered something unusable; names the engine and the call."""


class EngineUnreachableError(EngineError):
    """Raised when a server can't be reached, or went away during a call."""


class EngineTimeoutError(EngineError):
    """Raised when an engine gave no answer in the time it has (`rollout.timeout_s`)."""


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do.

    Attributes:
        seeds: Each request's seed alone decides what is sampled.
        fingerprint: The engine can hash the weights it holds, by the trainer's own names.
        sleep: The engine can give its memory back between rollouts, by `sleep` and `wake`.
    """

    seeds: bool
    fingerprint: bool
    sleep: bool


@runtime_checkable
class Engine(Protocol):
    """Samples completions from one policy version at a time."""

    name: str

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do."""

    @property
    def policy_version(self) -> int:
        """The version of the weights now held; -1 before the first update."""

    def generate(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Samples one completion a request, in the order of the requests.

        Raises:
            EngineError: The engine failed, or returned other requests than were asked for.
        """

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Loads a policy version: all parameters by the trainer's (transformers') names; drops cached keys."""

    def fingerprint(self) -> str | None:
        """A digest of the weights held (see `grpo_core.weights.fingerprint`), or None where it can't be read."""

    def close(self) -> None:
        """Frees what the engine holds; safe to call twice."""


@runtime_checkable
class Sleeper(Protocol):
    """An engine whose `capabilities.sleep` is true."""

    def sleep(self) -> None:
        """Gives memory back; the weights are gone, and only `wake` may follow."""

    def wake(self) -> None:
        """Takes the memory again; `update_weights` must follow."""
