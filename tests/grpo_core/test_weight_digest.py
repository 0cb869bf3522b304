"""The sampled digest of weights detects and misses what docs/sync.md states, on any device and in any layout."""

import functools

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_core.rollout.weights.digest import BLOCK, EVERY, sha256_digest, spot_digest
from tests.gpu.devices import on_gpu

SMALL = EVERY * BLOCK  # bytes: up to here a tensor is read whole
LARGE = 3 * SMALL + 5 * BLOCK + 12  # its last bytes fill no block
# A bias, a norm and two matrices, one of them of a size that no block fits.
SIZES = {"bias": 12, "norm": SMALL, "head": SMALL + BLOCK, "layer": LARGE}
bits = settings(max_examples=150, deadline=None)
versions = st.integers(0, 10**6)


def random_bytes(seed: int, sizes=SIZES) -> dict[str, torch.Tensor]:
    """Return tensors of arbitrary values."""
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randint(0, 256, (size,), generator=generator).byte() for n, size in sizes.items()}


FOUR_LAYERS = {f"layers.{i}": torch.full((200, 400), float(i)) for i in range(4)}
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8]
HELD, OLD = random_bytes(0), random_bytes(1)
digest_of = functools.cache(lambda version: spot_digest(HELD.items(), version))


def is_read(size: int, place: int, version: int) -> bool:
    """Return whether the digest of this version reads the byte at this place of a tensor, as in docs/sync.md."""
    blocks, block = size // BLOCK, place // BLOCK
    return size <= SMALL or block in (0, blocks - 1, blocks) or block % EVERY == version % EVERY


@st.composite
def byte_positions(draw):
    """Draw a tensor and one of its bytes."""
    name = draw(st.sampled_from(sorted(SIZES)))
    return name, draw(st.integers(0, SIZES[name] - 1))


def flip_bit(name: str, place: int, bit: int) -> dict[str, torch.Tensor]:
    """Return the tensors with one bit of one byte flipped."""
    changed = HELD[name].clone()
    changed[place] ^= 1 << bit
    return {**HELD, name: changed}


@bits
@given(where=byte_positions(), bit=st.integers(0, 7), version=st.integers(0, EVERY - 1))
@example(where=("layer", LARGE - 1), bit=7, version=0)
@example(where=("head", SMALL + BLOCK - 1), bit=7, version=5)
def test_flipped_bit_is_detected_where_the_digest_reads(where, bit, version):
    """A flipped bit is detected exactly where the digest reads: one time in 128 inside of a large tensor."""
    differs = spot_digest(flip_bit(*where, bit).items(), version) != digest_of(version)
    assert differs == is_read(SIZES[where[0]], where[1], version)


@settings(max_examples=15, deadline=None)
@given(where=byte_positions(), bit=st.integers(0, 7), start=versions)
def test_persistent_flipped_bit_is_detected_within_128_versions(where, bit, start):
    """Any 128 consecutive versions read every byte."""
    wrong = flip_bit(*where, bit)
    assert any(
        spot_digest(wrong.items(), version) != spot_digest(HELD.items(), version)
        for version in range(start, start + EVERY)
    )


@bits
@given(where=byte_positions(), bit=st.integers(0, 7), version=versions)
def test_full_digest_detects_every_flipped_bit(where, bit, version):
    """`every = 1` reads all blocks."""
    wrong = flip_bit(*where, bit)
    assert spot_digest(wrong.items(), version, 1) != spot_digest(HELD.items(), version, 1)


@bits
@given(start=st.integers(1, 200), length=st.integers(1, 160), version=st.integers(0, EVERY - 1))
def test_longer_damage_is_detected_more_often(start, length, version):
    """n of 128 versions detect n blocks inside of a large tensor; each detects 512 KiB."""
    changed = HELD["layer"].clone()
    changed[start * BLOCK : (start + length) * BLOCK] ^= 255
    differs = spot_digest({**HELD, "layer": changed}.items(), version) != digest_of(version)
    assert differs == any(block % EVERY == version for block in range(start, start + length))


@bits
@given(cut=st.integers(0, sum(SIZES.values()) - 4), version=st.integers(0, EVERY - 1), front=st.booleans())
def test_partly_loaded_update_is_detected(cut, version, front):
    """An update that stops inside any tensor is detected, because the ends of tensors are always read."""
    mixed, rest = {}, cut
    for name in sorted(SIZES, reverse=not front):
        count = min(rest, SIZES[name])
        parts = [HELD[name][:count], OLD[name][count:]]
        if not front:
            parts = [OLD[name][: SIZES[name] - count], HELD[name][SIZES[name] - count :]]
        mixed[name], rest = torch.cat(parts), rest - count
    same = all(torch.equal(mixed[name], HELD[name]) for name in SIZES)
    assert (spot_digest(mixed.items(), version) == digest_of(version)) == same


@bits
@given(version=versions, first=st.integers(0, 3), second=st.integers(0, 3))
def test_swapped_tensors_are_detected(version, first, second):
    """The digest changes if two different tensors of one shape have each other's names."""
    stored = FOUR_LAYERS
    first_name, second_name = f"layers.{first}", f"layers.{second}"
    swapped = {**stored, first_name: stored[second_name], second_name: stored[first_name]}
    same = spot_digest(stored.items(), version) == spot_digest(swapped.items(), version)
    assert same == (first == second)


@pytest.mark.parametrize("digest", [sha256_digest, functools.partial(spot_digest, version=1)])
def test_digest_depends_on_names_dtypes_shapes_and_bytes(digest):
    """The order of the tensors does not matter."""
    base = torch.arange(12, dtype=torch.int32)
    other = torch.ones(4)
    changed = [base.view(3, 4), base.view(torch.float32), base + 1]
    lists = [[("a", value), ("b", other)] for value in (base, *changed)]
    lists += [[("c", base), ("b", other)], [("a", base)]]
    assert len(set(map(digest, lists))) == 6
    assert digest(lists[0][::-1]) == digest(lists[0])


@bits
@given(
    shape=st.lists(st.integers(0, 40), min_size=0, max_size=3),
    kind=st.sampled_from(DTYPES),
    offset=st.integers(0, 9),
    version=versions,
)
def test_digest_does_not_depend_on_layout(shape, kind, offset, version):
    """A transposed tensor or a slice of a longer buffer, at any offset, has the same digest as its contiguous copy."""
    plain = (torch.rand(shape) * 3).to(kind)
    buffer = torch.zeros(plain.numel() + offset + 1, dtype=kind)
    piece = buffer[offset : offset + plain.numel()].view(plain.shape)
    piece.copy_(plain)
    turned = plain.mT.contiguous().mT if plain.dim() > 1 else plain
    assert len({spot_digest([("a", value)], version) for value in (plain, piece, turned)}) == 1


def test_digest_value_is_stable():
    """The value is part of the interface because trainer and server may run different releases of PyTorch."""
    tensors = {"a": torch.arange(200_000, dtype=torch.float32), "b": torch.arange(5, dtype=torch.float64)}
    assert spot_digest(tensors.items(), 7) == "spot128-v7-e1c9887765e3c3078f57144f998afd12"


@on_gpu
@pytest.mark.parametrize("every", [1, EVERY])
def test_digest_is_the_same_on_a_gpu(every):
    """Integers overflow alike on both devices."""
    tensors = {**HELD, "double": torch.arange(70_000, dtype=torch.float64)}
    on_gpu = {name: value.cuda() for name, value in tensors.items()}
    assert spot_digest(tensors.items(), 7, every) == spot_digest(on_gpu.items(), 7, every)


def test_documented_misses():
    """The digest misses changed top bits in two words of a block; it detects them in three words, and changed signs."""
    words = torch.arange(512, dtype=torch.int64).view(torch.uint8)
    wrong = words.clone()
    wrong[[7, 15]] ^= 128
    assert spot_digest([("a", words)], 0) == spot_digest([("a", wrong)], 0)
    wrong[23] ^= 128
    assert spot_digest([("a", words)], 0) != spot_digest([("a", wrong)], 0)
    for kind in (torch.float64, torch.float32, torch.bfloat16):
        values = torch.ones(512, dtype=kind)
        assert spot_digest([("a", values)], 0) != spot_digest([("a", -values)], 0)
