"""A checksum of every byte that is sent, of the kind that `grpo_core.rollout.weights.digest` describes."""

from __future__ import annotations

import hashlib

import torch

from grpo_core.rollout.weights.digest import BLOCK, block_sums, blocks_of, words_of


class Checksum:
    """Over all bytes of a stream, as they come.

    >>> whole, parts = Checksum(), Checksum()
    >>> whole.update(memoryview(bytearray(b"a" * 5000)))
    >>> parts.update(memoryview(bytearray(b"a" * 4096)))
    >>> parts.update(memoryview(bytearray(b"a" * 904)))
    >>> whole.digest() == parts.digest()
    True
    """

    SIZE = 16

    def __init__(self) -> None:
        self._digest, self._length = hashlib.blake2b(digest_size=self.SIZE), 0

    def update(self, piece: memoryview) -> None:
        """Takes the next bytes, writable memory: all pieces but the last are whole blocks of 4 KiB."""
        if self._length % BLOCK:
            raise ValueError(f"a piece behind {self._length} bytes, which are no whole blocks of {BLOCK}")
        self._length += len(piece)
        if len(piece):
            self._digest.update(
                block_sums(blocks_of(words_of(torch.frombuffer(piece, dtype=torch.uint8)))).numpy()
            )

    def digest(self) -> bytes:
        """16 bytes, of the length and of all that came."""
        whole = self._digest.copy()
        whole.update(self._length.to_bytes(8, "little"))
        return whole.digest()
