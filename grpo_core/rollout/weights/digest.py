"""Compute digests of weights: a sampled one that is cheap enough for every sync, and SHA-256 of all bytes.

`spot_digest` splits bytes into blocks of 4 KiB, each with 512 words of 8 bytes. Each word is multiplied by a fixed odd
number, and the products of a block are added modulo 2**64. The result is BLAKE2b over the tensors' names, types and
shapes, and the sums of their blocks. Integers overflow in the same way everywhere, so the result is the same on any
device, in any layout and with any number of threads.

A sum never misses a change of one word. If several words of a block change, let z be the lowest bit that changes in any
of them. The sum misses the change with probability 2**-(63 - z): 2**-63 for new values, 2**-32 for a negated float32
block. If only the top bits of an even number of words change, the sum does not change. In types of 8 bytes the top bit
is the sign, so these types get a second sum over the words' upper halves.

Tensors of up to 512 KiB are read completely. Of a larger tensor the digest reads its first and last block, its last
bytes, and every 128th block, starting at another block with each policy version. docs/sync.md lists the faults that
this finds.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable

import torch

BLOCK = 4096  # bytes
_WORDS = BLOCK // 8
EVERY = 128  # of a large tensor, one block in 128 is read


def spot_digest(tensors: Iterable[tuple[str, torch.Tensor]], version: int, every: int = EVERY) -> str:
    """Digest names, types and shapes, and a sample of the bytes that changes with the policy version.

    Args:
        tensors: The weights, in any order.
        version: The policy version. Any `every` consecutive versions read every byte.
        every: Distance of the blocks that are read of a large tensor; 1 reads every byte.

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
        if small:  # joined: one large operation costs less than many small ones
            sums.append(block_sums(torch.cat([part.to(small[0].device) for part in small])))
        if sums:
            digest.update(torch.cat([part.to(sums[-1].device) for part in sums]).cpu().numpy())
    return f"spot{every}-v{version}-{digest.hexdigest()}"


def sha256_digest(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Compute SHA-256 over names, types, shapes and bytes, in the order of the names; a run's summary has it.

    >>> a, b = torch.zeros(2), torch.ones(1)
    >>> sha256_digest([("a", a), ("b", b)]) == sha256_digest([("b", b), ("a", a)])
    True
    >>> sha256_digest([("a", a), ("b", b)]) == sha256_digest([("a", a), ("b", -b)])
    False
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda entry: entry[0]):
        value = tensor.detach().cpu().contiguous()
        digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
        digest.update(memoryview(value.reshape(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()


def digest_of_same_kind(digest: str, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> str:
    """Compute a digest of the same kind as another one: `spot_digest` with the usual sample of a version, or SHA-256.

    >>> digest_of_same_kind("spot128-v2-0", [("a", torch.ones(1))], 3)[:11]
    'spot128-v3-'
    >>> len(digest_of_same_kind("0" * 64, [("a", torch.ones(1))], 3))
    64
    """
    return spot_digest(tensors, version) if digest.startswith("spot") else sha256_digest(tensors)


def words_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes as 8-byte words in order, without a copy if alignment allows it."""
    if not tensor.numel():
        return torch.empty(0, dtype=torch.int64, device=tensor.device)
    tensor = tensor.contiguous()
    row = tensor.shape[-1] * tensor.element_size() if tensor.dim() else 1
    if row % 8 or tensor.data_ptr() % 8 or tensor.storage_offset() * tensor.element_size() % 8:
        data = tensor.view(-1).view(torch.uint8)
        tensor = torch.nn.functional.pad(data, (0, -data.numel() % 8))
    return tensor.view(torch.int64)


def _sample(words: torch.Tensor, version: int, every: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the blocks [N, 512] that the digest reads: all of a small tensor; the ends and a sample of a large one."""
    (count, rest), begin, phase = divmod(words.numel(), _WORDS), words.storage_offset(), version % every
    if count <= every:
        return blocks_of(words), words.new_empty(0, _WORDS)
    ends = words.as_strided((2, _WORDS), ((count - 1) * _WORDS, 1), begin)
    if rest:
        ends = torch.cat([ends, blocks_of(words.as_strided((rest,), (1,), begin + count * _WORDS))])
    size = ((count - phase + every - 1) // every, _WORDS)
    return ends, words.as_strided(size, (every * _WORDS, 1), begin + phase * _WORDS)


def blocks_of(words: torch.Tensor) -> torch.Tensor:
    """Return all words as blocks [N, 512], the last one padded with zeros."""
    words = words.view(-1)
    missing = -len(words) % _WORDS
    return (torch.nn.functional.pad(words, (0, missing)) if missing else words).view(-1, _WORDS)


def block_sums(blocks: torch.Tensor) -> torch.Tensor:
    """Return the weighted sums [N] of blocks of words [N, 512]."""
    odd = _multipliers(blocks.device)
    # Other devices have no integer matrix product.
    return torch.mv(blocks, odd) if blocks.is_cpu else (blocks * odd).sum(1)


@functools.lru_cache
def _multipliers(device: torch.device) -> torch.Tensor:
    """Return 512 odd numbers of 64 bits from SHAKE-256, the same in every release."""
    seed = b"grpo_core.sync.digest 1"  # recorded digests depend on these bytes
    numbers = bytearray(hashlib.shake_256(seed).digest(BLOCK))
    return (torch.frombuffer(numbers, dtype=torch.int64) | 1).to(device)
