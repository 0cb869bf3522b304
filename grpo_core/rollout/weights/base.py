"""Getting a policy version from the trainer to an engine that is somewhere else, by any of five ways.

In the same process nothing has to be moved: the engine is handed the tensors. Elsewhere a *sender* (the trainer's side)
and a *receiver* (beside the engine) share a control channel that is there already, the pipe or HTTP, and the bytes go

* `inline` (over HTTP called `http`): through that channel itself;
* `shm`: through memory that both processes have mapped;
* `gloo`, `nccl`: by torch.distributed, in a group of these two;
* `files`: through a folder that both see.

`auto` is shared memory where it works, and says so where it doesn't. All of them load whole versions only: the
engine is called when everything is there. What proves that it arrived is described in docs/sync.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from grpo_core.rollout.engine import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager

    import torch

    from grpo_core.rollout.weights.flat import Flat

KINDS = ("auto", "inline", "http", "shm", "gloo", "nccl", "files")


class SetUpError(EngineError):
    """Raised when a transport can't be set up between these two processes; nothing was sent."""


class TornError(EngineError):
    """Raised when a version was replaced while an engine loaded it: the engine may hold a mix of two."""


class Call(Protocol):
    """The control channel: makes a call of the receiver and gives its answer; raises EngineError for a refusal."""

    def __call__(
        self, method: str, arguments: dict[str, Any], payload: Flat | None = None, /
    ) -> dict[str, Any]:
        """`method` is `sync_open`, `sync_begin` or `sync_load` (see `weights.receive.Receiver`)."""


class Sender(Protocol):
    """The trainer's side."""

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> int:
        """Sends all parameters, waits until the engine has loaded them, and returns the version it then reports.

        Raises:
            SetUpError: The transport does not work here.
            EngineError: The other side died, refused or did not answer in time.
        """

    def close(self) -> None:
        """Frees what the transport holds; safe to call twice."""


class Incoming(Protocol):
    """One transport's receiving end."""

    def begin(self, arguments: Mapping[str, Any]) -> None:
        """Starts to receive, where that takes a thread; returns at once."""

    def tensors(
        self, arguments: Mapping[str, Any], payload: bytearray | None
    ) -> AbstractContextManager[dict[str, torch.Tensor]]:
        """What was sent, complete; to be used inside the `with` only, whose end may find that it was replaced."""

    def close(self) -> None:
        """Frees what the transport holds; safe to call twice."""
