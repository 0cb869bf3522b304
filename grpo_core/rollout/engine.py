"""The engine protocol: what samples completions, as the three rollout modes see it.

One engine has one owner: no two of its calls run at the same time, save `abort`, which any thread may make. An
engine that can't do something says so in `capabilities` before use, and refuses it before anything has happened.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from grpo_core.types import RunError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from grpo_core.types import Completion, Request, SamplingParams


class EngineError(RunError):
    """Raised when an engine failed, refused or answered something unusable; names the engine and the call."""


class EngineUnreachableError(EngineError):
    """Raised when a server can't be reached, or went away during a call."""


class EngineTimeoutError(EngineError):
    """Raised when an engine gave no answer in the time it has (`rollout.timeout_s`)."""

    outcome = "timeout"


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do.

    Attributes:
        seeds: Each request's seed alone decides what is sampled.
        fingerprint: The engine can hash the weights it holds, by the trainer's own names.
        sleep: The engine can give its memory back between rollouts, by `sleep` and `wake`.
        abort: `abort` ends a running `generate` from another thread.
        partial: The engine goes on behind a `Request.prefix`, and keeps a `Request.budget`.
        update: `update_weights` works.
        why_not: For each of these that the engine lacks, one sentence that says why. Besides them, `slices`:
            why a completion sampled in slices (`partial`) is another one than the same request's sampled at once;
            and `temperature`: why only temperature 1 can be sampled at.
    """

    seeds: bool
    fingerprint: bool
    sleep: bool
    abort: bool = False
    partial: bool = True
    update: bool = True
    why_not: Mapping[str, str] = field(default_factory=dict, hash=False)

    def without(self, **why_not: str) -> Capabilities:
        """These, less the named ones, each with its reason.

        >>> Capabilities(seeds=True, fingerprint=True, sleep=True).without(sleep="it has no memory").sleep
        False
        """
        return replace(self, **dict.fromkeys(why_not, False), why_not={**self.why_not, **why_not})


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

    def abort(self) -> None:
        """From another thread: the running `generate` returns at once what it has, with reason `abort`.

        A completion that had not begun is empty then. None running: nothing happens.
        """

    def update_weights(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Loads a policy version: all parameters by the trainer's (transformers') names; drops cached keys.

        Raises:
            EngineError: They are not the model's parameters; the engine keeps the ones it had.
        """

    def reset_prefix_cache(self) -> None:
        """Forgets cached keys and values, as `update_weights` does by itself. Without a cache: nothing."""

    def fingerprint(self) -> str | None:
        """A digest of the weights held (see `grpo_core.rollout.weights.digest`), or None where it can't be read."""

    def close(self) -> None:
        """Frees what the engine holds; safe to call twice. Sampling and updates are refused from then on."""


@runtime_checkable
class Sleeper(Protocol):
    """An engine whose `capabilities.sleep` is true. Either call may be made twice."""

    def sleep(self) -> None:
        """Gives memory back; the weights are gone, and only `wake` may follow."""

    def wake(self) -> None:
        """Takes the memory again; `update_weights` must follow."""
