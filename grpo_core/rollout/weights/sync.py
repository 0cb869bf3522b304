"""The trainer's side of a sync: the sender that `rollout.sync` asks for."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from grpo_core.rollout.engine import EngineError, EngineTimeoutError
from grpo_core.rollout.weights.transports import (
    KINDS,
    InlineReceiver,
    InlineSender,
    SetUpError,
    ShmReceiver,
    ShmSender,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import torch

    from grpo_core.rollout.engine import Engine
    from grpo_core.rollout.weights.transports import Call, Incoming, Sender


_MODULES = {
    "gloo": "grpo_core.rollout.weights.group",
    "nccl": "grpo_core.rollout.weights.group",
    "files": "grpo_core.rollout.weights.files",
}


def open_sender(
    kind: str,
    call: Call,
    *,
    timeout_s: float,
    root: Path | None = None,
    device: str = "cpu",
    host: str = "127.0.0.1",
) -> Sender:
    """A sender of one of `KINDS`.

    Args:
        kind: How the bytes go.
        call: The control channel.
        timeout_s: The longest wait for the other side, at any point.
        root: For `files`: the folder, which the receiver was given, too.
        device: For `nccl`: the trainer's.
        host: For `gloo` and `nccl`: this machine's address, as the engine's machine reaches it.

    Raises:
        EngineError: There is no such kind, or `files` without a folder.
    """
    if kind == "auto":
        return _AutoSender(call)
    if kind in ("inline", "http"):
        return InlineSender(kind, call)
    if kind == "shm":
        return ShmSender(call)
    if kind in _MODULES:
        sender: Sender = importlib.import_module(_MODULES[kind]).open_sender(
            kind, call, timeout_s=timeout_s, root=root, device=device, host=host
        )
        return sender
    raise EngineError(f"rollout.sync = {kind!r}: there are {', '.join(KINDS)}")


class _AutoSender:
    """Shared memory; where that can't be set up, through the channel itself from then on, and it says so."""

    def __init__(self, call: Call) -> None:
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
            self._sender = InlineSender("inline", self._call)
            return self._sender.send(whole, version)

    def close(self) -> None:
        self._sender.close()


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
            return InlineReceiver()
        if self._open is None or self._kind != arguments["kind"]:
            raise EngineError(f"weight sync by {arguments['kind']}: it isn't open; open it first")
        return self._open


def open_receiver(
    kind: str, arguments: Mapping[str, Any], *, timeout_s: float, root: Path | None = None
) -> Incoming:
    """The receiving end that a sender asked for.

    Raises:
        EngineError: It can't be had here.
    """
    if kind == "shm":
        return ShmReceiver(arguments)
    if kind in _MODULES:
        found: Incoming = importlib.import_module(_MODULES[kind]).open_receiver(
            kind, arguments, timeout_s=timeout_s, root=root
        )
        return found
    raise EngineError(f"weight sync: no receiver is called {kind!r}; there are shm, gloo, nccl and files")
