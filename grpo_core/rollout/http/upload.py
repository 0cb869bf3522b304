"""Weights in the body of a POST, the client's side: safetensors, and behind it 16 bytes of checksum over all of it.

The checksum comes last, so that it is computed of each piece while the piece is in the cache. Nothing is put together
first: tensors are sent from where they lie. `grpo_core.rollout.serve.uploads` is the other side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_core.rollout.weights.checksum import Checksum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grpo_core.rollout.weights.flat import Flat


class Upload:
    """The body of a request, for `http.client.HTTPConnection.request`; the same again each time it is sent.

    Attributes:
        headers: What goes with it.
    """

    def __init__(self, flat: Flat) -> None:
        """Reads nothing yet."""
        self._flat = flat
        self.headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(flat.size + Checksum.SIZE),
            "Connection": "close",
        }

    def __iter__(self) -> Iterator[memoryview | bytes]:
        """Piece by piece, each to be sent before the next."""
        checksum = Checksum()
        for piece in self._flat.pieces():
            checksum.update(piece)
            yield piece
        yield checksum.digest()
