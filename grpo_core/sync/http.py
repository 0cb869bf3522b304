"""Weights in the body of a POST, the client's side: safetensors, and behind it 16 bytes of checksum over all of it.

The checksum comes last, so that it is computed of each piece while the piece is in the cache. Nothing is put together
first: tensors are sent from where they lie. `grpo_core.sync.uploads` is the other side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_core.sync.digest import Checksum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grpo_core.sync.flat import Flat


def upload(flat: Flat) -> tuple[dict[str, str], Iterator[memoryview | bytes]]:
    """Headers and body of the request, for `http.client.HTTPConnection.request`."""
    headers = {
        "Content-Type": "application/octet-stream",
        "Content-Length": str(flat.size + Checksum.SIZE),
        "Connection": "close",
    }
    return headers, _body(flat)


def _body(flat: Flat) -> Iterator[memoryview | bytes]:
    checksum = Checksum()
    for piece in flat.pieces():
        checksum.update(piece)
        yield piece
    yield checksum.digest()
