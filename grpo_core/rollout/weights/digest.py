"""What proves that weights arrived: a digest cheap enough for every sync, beside a checksum of every byte (`checksum`).

Both cut bytes into blocks of 4 KiB and take of each block the sum, modulo 2**64, of its 512 words of 8 bytes, each word
times a fixed odd number of its own; BLAKE2b over all sums, in their order, is the result. Integers wrap alike
everywhere, so the result is the same on any device, in any layout and with any number of threads.

What a block's sum misses: a change within one word, never. Changes in several words: the multipliers are as good as
random, so with probability 2**-(63 - z), z being the lowest bit in which any of the words differs: 2**-63 for new
values, 2**-32 for a negated float32 block. Missed for certain is an even number of words that differ in nothing but
their top bit; types of 8 bytes, where a sign is such a bit, get a second sum over the words' upper halves.

`spot_digest` reads all of the tensors of up to 512 KiB; of a larger one its first and last block, its last bytes, and
every 128th block, other ones with each policy version. docs/sync.md says what that finds, and how surely.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

BLOCK = 4096  # bytes
_WORDS = BLOCK // 8
EVERY = 128  # of a large tensor's blocks one in so many is read


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
    >>> spot_digest([], 3)[:11]
    'spot128-v3-'
    """
    digest, sums, small = hashlib.blake2b(digest_size=16), [], []
    with torch.no_grad():
        for name, tensor in sorted(tensors, key=lambda entry: entry[0]):
            digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
            ends, between = _sample(words_of(tensor), version, every)
            if tensor.element_size() == 8:
                ends, between = torch.cat([ends, ends >> 32]), torch.cat([between, between >> 32])
            small.append(ends)
            if len(between):
                sums.append(block_sums(between))
        if small:  # together: one operation on much costs less than many on little
            sums.append(block_sums(torch.cat([part.to(small[0].device) for part in small])))
        if sums:
            digest.update(torch.cat([part.to(sums[-1].device) for part in sums]).cpu().numpy())
    return f"spot{every}-v{version}-{digest.hexdigest()}"


def fingerprint_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of the names: what records and runs are compared by.

    >>> a, b = torch.zeros(2), torch.ones(1)
    >>> fingerprint_of([("a", a), ("b", b)]) == fingerprint_of([("b", b), ("a", a)])
    True
    >>> fingerprint_of([("a", a), ("b", b)]) == fingerprint_of([("a", a), ("b", -b)])
    False
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda entry: entry[0]):
        value = tensor.detach().cpu().contiguous()
        digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
        digest.update(memoryview(value.reshape(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()


def fingerprint_like(held: str, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> str:
    """The fingerprint of tensors, computed as that one was which an engine holding `version` gave.

    >>> fingerprint_like("spot128-v2-0", [("a", torch.ones(1))], 3)[:11]
    'spot128-v3-'
    >>> len(fingerprint_like("0" * 64, [("a", torch.ones(1))], 3))
    64
    """
    return spot_digest(tensors, version) if held.startswith("spot") else fingerprint_of(tensors)


def words_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bytes as words of 8, in their order and without a copy wherever they lie like that."""
    if not tensor.numel():
        return torch.empty(0, dtype=torch.int64, device=tensor.device)
    tensor = tensor.contiguous()
    row = tensor.shape[-1] * tensor.element_size() if tensor.dim() else 1
    if row % 8 or tensor.data_ptr() % 8 or tensor.storage_offset() * tensor.element_size() % 8:
        data = tensor.view(-1).view(torch.uint8)
        tensor = torch.nn.functional.pad(data, (0, -data.numel() % 8))
    return tensor.view(torch.int64)


def _sample(words: torch.Tensor, version: int, every: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The blocks [N, 512] that are read: those at the ends, or all of a small tensor; and those between."""
    (count, rest), begin, phase = divmod(words.numel(), _WORDS), words.storage_offset(), version % every
    if count <= every:
        return blocks_of(words), words.new_empty(0, _WORDS)
    ends = words.as_strided((2, _WORDS), ((count - 1) * _WORDS, 1), begin)
    if rest:
        ends = torch.cat([ends, blocks_of(words.as_strided((rest,), (1,), begin + count * _WORDS))])
    size = ((count - phase + every - 1) // every, _WORDS)
    return ends, words.as_strided(size, (every * _WORDS, 1), begin + phase * _WORDS)


def blocks_of(words: torch.Tensor) -> torch.Tensor:
    """All words as blocks [N, 512], the last one filled up with zeros."""
    words = words.view(-1)
    missing = -len(words) % _WORDS
    return (torch.nn.functional.pad(words, (0, missing)) if missing else words).view(-1, _WORDS)


def block_sums(blocks: torch.Tensor) -> torch.Tensor:
    """The sums [N] of blocks of words [N, 512]."""
    odd = _multipliers(blocks.device)
    # Other devices have no product of integer matrices.
    return torch.mv(blocks, odd) if blocks.is_cpu else (blocks * odd).sum(1)


@functools.lru_cache
def _multipliers(device: torch.device) -> torch.Tensor:
    """512 odd numbers of 64 bits, from SHAKE-256: the same in every release of anything."""
    seed = b"grpo_core.sync.digest 1"  # no module any more: recorded digests rest on these very bytes
    numbers = bytearray(hashlib.shake_256(seed).digest(BLOCK))
    return (torch.frombuffer(numbers, dtype=torch.int64) | 1).to(device)


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
