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

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from grpo_core.rollout.engine import EngineError, EngineTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    import torch

    from grpo_core.rollout.engine import Engine
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
        """`method` is `sync_open`, `sync_begin` or `sync_load` (see `Receiver`)."""


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


class Receiver:
    """What stands beside the engine, and answers a sender's calls. One transport is open at a time."""

    def __init__(self, *, timeout_s: float, root: Path | None = None) -> None:
        """Takes what no sender may choose: how long is waited for it, and below which folder files are read."""
        self._timeout_s, self._root = timeout_s, root
        self._kind, self._open = "", None  # type: tuple[str, Incoming | None]

    def open(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Sets a transport up, in place of an earlier one."""
        self.close()
        self._open = open_receiver(arguments["kind"], arguments, timeout_s=self._timeout_s, root=self._root)
        self._kind = arguments["kind"]
        return {}

    def begin(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Starts to receive a version."""
        self._found(arguments).begin(arguments)
        return {}

    def load(
        self, arguments: Mapping[str, Any], engine: Engine, payload: bytearray | None = None
    ) -> dict[str, Any]:
        """Gives a version that has come to the engine, and returns the one that the engine then reports."""
        with self._found(arguments).tensors(arguments, payload) as tensors:
            engine.update_weights(tensors.items(), arguments["version"])
        return {"version": engine.policy_version}

    def close(self) -> None:
        """Frees what the transport holds; safe to call twice."""
        found, self._open, self._kind = self._open, None, ""
        if found is not None:
            found.close()

    def _found(self, arguments: Mapping[str, Any]) -> Incoming:
        if arguments["kind"] in ("inline", "http"):  # come with the call: nothing had to be opened
            return _Inline()
        if self._open is None or self._kind != arguments["kind"]:
            raise EngineError(f"weight sync by {arguments['kind']}: it isn't open; open it first")
        return self._open


def open_sender(
    kind: str, call: Call, *, timeout_s: float, root: Path | None = None, device: str = "cpu"
) -> Sender:
    """A sender of one of `KINDS`.

    Args:
        kind: How the bytes go.
        call: The control channel.
        timeout_s: The longest wait for the other side, at any point.
        root: For `files`: the folder, which the receiver was given, too.
        device: For `nccl`: the trainer's.

    Raises:
        EngineError: There is no such kind, or `files` without a folder.
    """
    if kind == "auto":
        return _Auto(call)
    if kind in ("inline", "http"):
        return _InlineSender(kind, call)
    if kind == "shm":
        from grpo_core.rollout.weights.shm import ShmSender

        return ShmSender(call)
    if kind in ("gloo", "nccl"):
        from grpo_core.rollout.connect.weights.group import GroupSender

        return GroupSender(kind, call, timeout_s=timeout_s, device=device)
    if kind == "files" and root is not None:
        from grpo_core.rollout.connect.weights.files import FileSender

        return FileSender(call, root)
    missing = "it needs a folder that both sides see" if kind == "files" else f"there are {', '.join(KINDS)}"
    raise EngineError(f"rollout.sync = {kind!r}: {missing}")


def open_receiver(
    kind: str, arguments: Mapping[str, Any], *, timeout_s: float, root: Path | None = None
) -> Incoming:
    """The receiving end that a sender asked for.

    Raises:
        EngineError: It can't be had here.
    """
    if kind == "shm":
        from grpo_core.rollout.weights.shm import ShmReceiver

        return ShmReceiver(arguments)
    if kind in ("gloo", "nccl"):
        from grpo_core.rollout.connect.weights.group import GroupReceiver

        return GroupReceiver(kind, arguments, timeout_s=timeout_s)
    if kind == "files":
        from grpo_core.rollout.connect.weights.files import FileReceiver

        return FileReceiver(root)
    raise EngineError(f"weight sync: no receiver is called {kind!r}; there are shm, gloo, nccl and files")


class _InlineSender:
    def __init__(self, kind: str, call: Call) -> None:
        self._kind, self._call = kind, call

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> int:
        from grpo_core.rollout.weights.flat import Flat

        flat = Flat(tensors, version)
        arguments = {"kind": self._kind, "version": version, "size": flat.size}
        return int(self._call("sync_load", arguments, flat)["version"])

    def close(self) -> None:
        pass


class _Inline:
    def begin(self, arguments: Mapping[str, Any]) -> None:
        pass

    @contextmanager
    def tensors(
        self, arguments: Mapping[str, Any], payload: bytearray | None
    ) -> Iterator[dict[str, torch.Tensor]]:
        import torch

        from grpo_core.rollout.weights.flat import FlatError, tensors_in

        if payload is None or len(payload) != arguments["size"]:
            came = 0 if payload is None else len(payload)
            raise EngineError(f"weight sync inline: {came} bytes came, {arguments['size']} were announced")
        try:
            found = tensors_in(torch.frombuffer(payload, dtype=torch.uint8))
        except FlatError as error:
            raise EngineError(f"weight sync inline: {error}") from error
        yield found

    def close(self) -> None:
        pass


class _Auto:
    """Shared memory; where that can't be set up, through the channel itself from then on, and it says so."""

    def __init__(self, call: Call) -> None:
        from grpo_core.rollout.weights.shm import ShmSender

        self._call = call
        self._sender: Sender = ShmSender(call)

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> int:
        whole = list(tensors)
        try:
            return self._sender.send(whole, version)
        except SetUpError as error:
            if isinstance(error.__cause__, EngineTimeoutError):
                raise
            print(f"grpo_core: {error}; weights go inline, which is slower", file=sys.stderr)
            self.close()
            self._sender = _InlineSender("inline", self._call)
            return self._sender.send(whole, version)

    def close(self) -> None:
        self._sender.close()
