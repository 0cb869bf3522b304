"""Weights through the control channel itself: behind a pipe, or in the body of a request."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.weights.flat import Flat, received

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from grpo_core.rollout.weights.base import Call


class InlineSender:
    """The trainer's side."""

    def __init__(self, kind: str, call: Call) -> None:
        """`kind` is `inline` or `http`."""
        self._kind, self._call = kind, call

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> int:
        """See `Sender`."""
        flat = Flat(tensors, version)
        arguments = {"kind": self._kind, "version": version, "size": flat.size}
        return int(self._call("sync_load", arguments, flat)["version"])

    def close(self) -> None:
        """Nothing is held."""


class InlineReceiver:
    """The engine's side: what was sent comes with the call."""

    def begin(self, arguments: Mapping[str, Any]) -> None:
        """Nothing to start."""

    @contextmanager
    def tensors(
        self, arguments: Mapping[str, Any], payload: bytearray | None
    ) -> Iterator[dict[str, torch.Tensor]]:
        """See `Incoming`."""
        if payload is None or len(payload) != arguments["size"]:
            came = 0 if payload is None else len(payload)
            raise EngineError(f"weight sync inline: {came} bytes came, {arguments['size']} were announced")
        yield received(torch.frombuffer(payload, dtype=torch.uint8), "weight sync inline")

    def close(self) -> None:
        """Nothing is held."""
