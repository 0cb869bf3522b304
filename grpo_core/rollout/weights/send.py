"""The trainer's side of a sync: the sender that `rollout.sync` asks for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from grpo_core.extras import MODULES, extra
from grpo_core.rollout.engine import EngineError, EngineTimeoutError
from grpo_core.rollout.weights.base import KINDS, SetUpError
from grpo_core.rollout.weights.inline import InlineSender
from grpo_core.rollout.weights.shm import ShmSender

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import torch

    from grpo_core.rollout.weights.base import Call, Sender


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
    if kind in KINDS and kind in MODULES:
        sender: Sender = extra(kind).open_sender(
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
