"""What proves that weights arrived: a digest cheap enough for every sync, and a checksum of every byte.

Both cut bytes into blocks of 4 KiB and take of each block the sum, modulo 2**64, of its 512 words of 8 bytes, each word
times a fixed odd number of its own; BLAKE2b over all sums, in their order, is the result. Integers wrap alike
everywhere, so the result is the same on any device, in any layout and with any number of threads.

What a block's sum misses: a change within one word, never. Changes in several words: the multipliers are as good as
random, so with probability 2**-(63 - z), z being the lowest bit in which any of the words differs: 2**-63 for new
values, 2**-32 for a negated float32 block. Missed for certain is an even number of words that differ in nothing but
their top bit; types of 8 bytes, where a sign is such a bit, get a second sum over the words' upper halves.

`spot_digest` reads all of the tensors of up to 256 KiB; of a larger one its first and last block, its last bytes, and
every 64th block, another 64th with each policy version. docs/sync.md says what that finds, and how surely.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

BLOCK = 4096  # bytes
EVERY = 64  # of a large tensor's blocks one in so many is read


def spot_digest(tensors: Iterable[tuple[str, torch.Tensor]], version: int, every: int = EVERY) -> str:
    """A digest of names, types and shapes, and of a sample of the bytes that moves with the policy version.

    Args:
        tensors: What is held, or was sent, in any order.
        version: The policy version. Any `every` versions in a row read every byte.
        every: 1 reads every byte now.

    >>> a, b = torch.zeros(2), torch.ones(1)
    >>> spot_digest([("a", a), ("b", b)], 3) == spot_digest([("b", b), ("a", a)], 3)
    True
    >>> spot_digest([("a", a), ("b", b)], 3) == spot_digest([("a", a), ("b", -b)], 3)
    False
    >>> spot_digest([], 3)[:10]
    'spot64-v3-'
    """
    digest, sums = hashlib.blake2b(digest_size=16), []
    for name, tensor in sorted(tensors, key=lambda entry: entry[0]):
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        sums += [block_sums(part, tensor.element_size()) for part in _sample(tensor, version, every)]
    if sums:
        digest.update(torch.cat([part.to(sums[0].device) for part in sums]).cpu().numpy().tobytes())
    return f"spot{every}-v{version}-{digest.hexdigest()}"


def block_sums(blocks: torch.Tensor, element_size: int = 1) -> torch.Tensor:
    """The sum of each block [N] of bytes [N, 4096]; for types of 8 bytes [2 N], with those of the upper halves."""
    if (
        blocks.data_ptr() | blocks.storage_offset()
    ) % 8:  # a piece of somebody's buffer: no words start there
        blocks = blocks.clone()
    words, odd = blocks.view(torch.int64), _multipliers(blocks.device)
    kinds = [words, words >> 32] if element_size == 8 else [words]
    if words.is_cpu:  # the others have no product of integer matrices
        return torch.cat([torch.mv(kind, odd) for kind in kinds])
    return torch.cat([(kind * odd).sum(1) for kind in kinds])


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
            for blocks in _blocks(torch.frombuffer(piece, dtype=torch.uint8)):
                self._digest.update(block_sums(blocks).numpy())

    def digest(self) -> bytes:
        """16 bytes, of the length and of all that came."""
        whole = self._digest.copy()
        whole.update(self._length.to_bytes(8, "little"))
        return whole.digest()


@functools.lru_cache
def _multipliers(device: torch.device) -> torch.Tensor:
    """512 odd numbers of 64 bits, from SHAKE-256: the same in every release of anything."""
    numbers = bytearray(hashlib.shake_256(b"grpo_core.sync.digest 1").digest(BLOCK))
    return (torch.frombuffer(numbers, dtype=torch.int64) | 1).to(device)


def _sample(tensor: torch.Tensor, version: int, every: int) -> list[torch.Tensor]:
    *whole, last = _blocks(tensor.detach().contiguous().reshape(-1).view(torch.uint8)) or [None]
    if last is None:
        return []
    blocks = whole[0] if whole else last
    if len(blocks) <= every or every == 1:
        return [*whole, last]
    return [blocks[:1], blocks[version % every :: every], last[-1:]]


def _blocks(data: torch.Tensor) -> list[torch.Tensor]:
    """Bytes as blocks [N, 4096], without a copy; behind them the rest as one block, filled up with zeros."""
    count, rest = divmod(data.numel(), BLOCK)
    parts = [data[: count * BLOCK].view(count, BLOCK)] if count else []
    if rest:
        tail = data.new_zeros(1, BLOCK)
        tail[0, :rest] = data[count * BLOCK :]
        parts.append(tail)
    return parts
