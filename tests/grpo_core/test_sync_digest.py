"""Exact detection limits of the cheap digest: each statement of docs/sync.md is a test here."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_core.rollout.weights.digest import BLOCK, EVERY, spot_digest

SMALL = EVERY * BLOCK  # bytes: up to here a tensor is read whole
LARGE = 3 * SMALL + 5 * BLOCK + 12  # its last bytes fill no block
# A bias, a norm and two matrices, one of them of a size that no block fits.
SIZES = {"bias": 12, "norm": SMALL, "head": SMALL + BLOCK, "layer": LARGE}
bits = settings(max_examples=150, deadline=None)
versions = st.integers(0, 10**6)


def random_bytes(seed: int, sizes=SIZES) -> dict[str, torch.Tensor]:
    """Tensors of any values."""
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randint(0, 256, (size,), generator=generator).byte() for n, size in sizes.items()}


HELD, OLD = random_bytes(0), random_bytes(1)
DIGESTS = [spot_digest(HELD.items(), version) for version in range(EVERY)]


def is_read(size: int, place: int, version: int) -> bool:
    """Whether the digest of this version reads this byte of a tensor of so many, as docs/sync.md has it."""
    blocks, block = size // BLOCK, place // BLOCK
    return size <= SMALL or block in (0, blocks - 1, blocks) or block % EVERY == version % EVERY


@st.composite
def byte_positions(draw):
    """A tensor and one of its bytes."""
    name = draw(st.sampled_from(sorted(SIZES)))
    return name, draw(st.integers(0, SIZES[name] - 1))


def flipped(name: str, place: int, bit: int) -> dict[str, torch.Tensor]:
    """The tensors with one bit of one byte turned over."""
    changed = HELD[name].clone()
    changed[place] ^= 1 << bit
    return {**HELD, name: changed}


@bits
@given(where=byte_positions(), bit=st.integers(0, 7), version=st.integers(0, EVERY - 1))
@example(where=("layer", LARGE - 1), bit=7, version=0)
@example(where=("head", SMALL + BLOCK - 1), bit=7, version=5)
def test_a_flipped_bit_is_found_where_the_digest_reads(where, bit, version):
    """For certain there, and nowhere else: one time in 128 inside of a large tensor."""
    differs = spot_digest(flipped(*where, bit).items(), version) != DIGESTS[version]
    assert differs == is_read(SIZES[where[0]], where[1], version)


@settings(max_examples=15, deadline=None)
@given(where=byte_positions(), bit=st.integers(0, 7), start=versions)
def test_a_bit_that_stays_wrong_is_found_within_128_versions(where, bit, start):
    """Whatever 128 in a row they are: every byte is read by one of them."""
    wrong = flipped(*where, bit)
    assert any(
        spot_digest(wrong.items(), version) != spot_digest(HELD.items(), version)
        for version in range(start, start + EVERY)
    )


@bits
@given(where=byte_positions(), bit=st.integers(0, 7), version=versions)
def test_with_all_blocks_read_every_flipped_bit_is_found(where, bit, version):
    """`every = 1`."""
    wrong = flipped(*where, bit)
    assert spot_digest(wrong.items(), version, 1) != spot_digest(HELD.items(), version, 1)


@bits
@given(start=st.integers(1, 200), length=st.integers(1, 160), version=st.integers(0, EVERY - 1))
def test_a_run_of_damaged_blocks_is_found_as_often_as_it_is_long(start, length, version):
    """N blocks inside of a large tensor by n of 128 versions; 128 of them, 512 KiB, by each."""
    changed = HELD["layer"].clone()
    changed[start * BLOCK : (start + length) * BLOCK] ^= 255
    differs = spot_digest({**HELD, "layer": changed}.items(), version) != DIGESTS[version]
    assert differs == any(block % EVERY == version for block in range(start, start + length))


@bits
@given(name=st.sampled_from(sorted(SIZES)), version=st.integers(0, EVERY - 1))
def test_a_tensor_that_stayed_old_is_found(name, version):
    """Any one of them, by any version."""
    stale = {**HELD, name: OLD[name]}
    assert spot_digest(stale.items(), version) != DIGESTS[version]


@bits
@given(cut=st.integers(0, sum(SIZES.values()) - 4), version=st.integers(0, EVERY - 1), front=st.booleans())
def test_an_update_that_was_loaded_to_some_point_is_found(cut, version, front):
    """From the front or from the back, in the order of any layout: a tensor's ends are always read."""
    mixed, rest = {}, cut
    for name in sorted(SIZES, reverse=not front):
        count = min(rest, SIZES[name])
        parts = [HELD[name][:count], OLD[name][count:]]
        if not front:
            parts = [OLD[name][: SIZES[name] - count], HELD[name][SIZES[name] - count :]]
        mixed[name], rest = torch.cat(parts), rest - count
    same = all(torch.equal(mixed[name], HELD[name]) for name in SIZES)
    assert (spot_digest(mixed.items(), version) == DIGESTS[version]) == same


@bits
@given(version=versions, first=st.integers(0, 3), second=st.integers(0, 3))
def test_swapped_tensors_are_found(version, first, second):
    """Two of one shape under each other's names."""
    stored = {f"layers.{i}": torch.full((200, 400), float(i)) for i in range(4)}
    swapped = {
        **stored,
        f"layers.{first}": stored[f"layers.{second}"],
        f"layers.{second}": stored[f"layers.{first}"],
    }
    same = spot_digest(stored.items(), version) == spot_digest(swapped.items(), version)
    assert same == (first == second)


def test_names_types_shapes_and_the_version_count():
    """Equal bytes under another name, type, shape or version have another digest."""
    base = torch.arange(12, dtype=torch.int32)
    variants_others = [("b", base), ("a", base.view(3, 4)), ("a", base.view(torch.float32))]
    digests = {spot_digest([entry], 1) for entry in [("a", base), *variants_others]} | {
        spot_digest([("a", base)], 2)
    }
    assert len(digests) == 5
    assert spot_digest([("a", base), ("b", base)], 1) == spot_digest([("b", base), ("a", base)], 1)


@bits
@given(
    shape=st.lists(st.integers(0, 40), min_size=0, max_size=3),
    kind=st.sampled_from(
        [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8]
    ),
    offset=st.integers(0, 9),
    version=versions,
)
def test_layout_changes_nothing(shape, kind, offset, version):
    """Transposed, or a piece of a longer buffer that begins at any element: the same digest."""
    plain = (torch.rand(shape) * 3).to(kind)
    buffer = torch.zeros(plain.numel() + offset + 1, dtype=kind)
    piece = buffer[offset : offset + plain.numel()].view(plain.shape)
    piece.copy_(plain)
    turned = plain.mT.contiguous().mT if plain.dim() > 1 else plain
    assert len({spot_digest([("a", value)], version) for value in (plain, piece, turned)}) == 1


def test_the_digest_is_the_same_everywhere():
    """Trainer and server may run other releases of PyTorch: the value is part of the interface."""
    tensors = {"a": torch.arange(200_000, dtype=torch.float32), "b": torch.arange(5, dtype=torch.float64)}
    assert spot_digest(tensors.items(), 7) == "spot128-v7-e1c9887765e3c3078f57144f998afd12"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("every", [1, EVERY])
def test_the_digest_is_the_same_on_a_gpu(every):
    """Integers wrap there as here."""
    tensors = {**HELD, "double": torch.arange(70_000, dtype=torch.float64)}
    on_gpu = {name: value.cuda() for name, value in tensors.items()}
    assert spot_digest(tensors.items(), 7, every) == spot_digest(on_gpu.items(), 7, every)


def test_what_is_missed_is_what_the_documents_say():
    """Nothing but top bits of an even number of words of a block; and a sign of 8-byte types is no such case."""
    words = torch.arange(512, dtype=torch.int64).view(torch.uint8)
    wrong = words.clone()
    wrong[[7, 15]] ^= 128
    assert spot_digest([("a", words)], 0) == spot_digest([("a", wrong)], 0)
    wrong[23] ^= 128
    assert spot_digest([("a", words)], 0) != spot_digest([("a", wrong)], 0)
    for kind in (torch.float64, torch.float32, torch.bfloat16):
        values = torch.ones(512, dtype=kind)
        assert spot_digest([("a", values)], 0) != spot_digest([("a", -values)], 0)
