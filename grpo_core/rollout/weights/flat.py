"""Weights as one run of bytes, in safetensors' format: what every transport but the direct one moves.

Bytes are read and written in place. Large tensors start on multiples of 4 KiB wherever their sizes allow it, so they
are checksummed and sent from where they lie; what comes is used where it was received.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.weights.digest import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

PIECE = 2**20  # bytes that are handled at a time: they stay in a core's cache between two uses
# safetensors has 100 MB; a hundred thousand tensors take 13, and reading them is the one thing no thread can share.
_LARGEST_HEAD = 2**24
_MOST_DIMENSIONS, _MOST_ELEMENTS = 16, 2**63  # their product is computed of what somebody wrote
_TYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
_NAMES = {kind: name for name, kind in _TYPES.items()}


class FlatError(ValueError):
    """Raised when bytes are not weights in safetensors' format, or weights have no place in it."""


class Span(NamedTuple):
    """Where a tensor's bytes are, counted from the first byte of all."""

    tensor: torch.Tensor
    start: int
    stop: int


class Flat:
    """Tensors and the places they have among the bytes.

    Attributes:
        head: What comes before the tensors.
        places: In the order of the bytes.
        size: Of everything, in bytes.
    """

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Lays tensors out.

        Raises:
            FlatError: A type that safetensors doesn't have, or a name twice.
        """
        entries = sorted(tensors, key=_order)
        table: dict[str, Any] = {"__metadata__": {"format": "pt", "policy_version": str(version)}}
        at, spans = 0, []
        for name, tensor in entries:
            if tensor.dtype not in _NAMES or name in table:
                raise FlatError(f"{name}: its type is {tensor.dtype}, or there are two of this name")
            stop = at + tensor.numel() * tensor.element_size()
            table[name] = {
                "dtype": _NAMES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [at, stop],
            }
            spans.append((at, stop))
            at = stop
        text = json.dumps(table).encode()
        text += b" " * (-(len(text) + 8) % BLOCK)
        self.head = bytearray(len(text).to_bytes(8, "little") + text)
        begin = len(self.head)
        self.places = [
            Span(tensor.detach(), begin + start, begin + stop)
            for (_, tensor), (start, stop) in zip(entries, spans, strict=True)
        ]
        self.size = begin + at

    def fill(self, memory: torch.Tensor) -> None:
        """Writes everything to memory [size] of bytes, wherever the tensors are."""
        memory[: len(self.head)] = torch.frombuffer(self.head, dtype=torch.uint8)
        for tensor, start, stop in self.places:
            if start < stop:
                memory[start:stop].view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def runs(self) -> Iterator[torch.Tensor]:
        """Everything in order: the head, and then each tensor's bytes [N] where the tensor is."""
        yield torch.frombuffer(self.head, dtype=torch.uint8)
        for place in self.places:
            yield place.tensor.contiguous().reshape(-1).view(torch.uint8)

    def buckets(self, memory: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Everything in order, through two buffers [N] in turns: one may be in use while the other is filled."""
        turn, used = 0, 0
        for data in self.runs():
            at = 0
            while at < data.numel():
                count = min(len(memory[turn]) - used, data.numel() - at)
                memory[turn][used : used + count] = data[at : at + count]
                at, used = at + count, used + count
                if used == len(memory[turn]):
                    yield memory[turn]
                    turn, used = 1 - turn, 0
        if used:
            yield memory[turn][:used]

    def pieces(self) -> Iterator[memoryview]:
        """Everything in order, in whole blocks of 4 KiB but for the last piece; each to be used before the next."""
        held, used = bytearray(PIECE), 0  # what is too small, or lies badly, is collected here
        for data in map(torch.Tensor.cpu, self.runs()):
            at = 0
            while at < data.numel():
                if used % BLOCK == 0 and data.numel() - at >= PIECE:
                    if used:
                        yield memoryview(held)[:used]
                        used = 0
                    yield memoryview(data[at : at + PIECE].numpy())
                    at += PIECE
                    continue
                count = min(PIECE - used, data.numel() - at)
                torch.frombuffer(held, dtype=torch.uint8)[used : used + count] = data[at : at + count]
                at, used = at + count, used + count
                if used == PIECE:
                    yield memoryview(held)
                    used = 0
        if used:
            yield memoryview(held)[:used]


def tensors_in(memory: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors of such bytes [N], which stay where they are.

    Raises:
        FlatError: It isn't safetensors, is cut off, or is more than its header says.
    """
    try:
        length = int.from_bytes(bytes(memory[:8].tolist()), "little")
        if not 2 <= length <= min(_LARGEST_HEAD, memory.numel() - 8):
            raise FlatError(f"of {memory.numel()} bytes {length} would be the header")
        table = json.loads(memory[8 : 8 + length].cpu().numpy().tobytes())
        if not isinstance(table, dict):
            raise FlatError("a header that is no object")
        table.pop("__metadata__", None)
        found = {name: _tensor(memory[8 + length :], **entry) for name, entry in table.items()}
        spans = sorted(entry["data_offsets"] for entry in table.values())
    except (
        AttributeError,
        TypeError,
        KeyError,
        ValueError,
        RecursionError,
        OverflowError,
        RuntimeError,
    ) as error:
        raise FlatError(f"not safetensors: {error}") from error
    at = 0
    for start, stop in spans:
        if start != at:
            raise FlatError(f"not safetensors: the byte {at} of the data is no tensor's, or that of two")
        at = stop
    if at != memory.numel() - 8 - length:
        raise FlatError(f"{memory.numel() - 8 - length} bytes of tensors, where the header has {at}")
    return found


def received(memory: torch.Tensor, way: str) -> dict[str, torch.Tensor]:
    """`tensors_in` for the receiver of a transport, which `way` names.

    Raises:
        EngineError: These bytes are no weights.
    """
    try:
        return tensors_in(memory)
    except FlatError as error:
        raise EngineError(f"{way}: {error}; nothing was loaded") from error


def _tensor(data: torch.Tensor, dtype: str, shape: list[int], data_offsets: list[int]) -> torch.Tensor:
    kind, (start, stop) = _TYPES[dtype], data_offsets
    if len(shape) > _MOST_DIMENSIONS:
        raise FlatError(f"a shape of {len(shape)} dimensions, where {_MOST_DIMENSIONS} are the most")
    if (
        not all(type(n) is int and 0 <= n < _MOST_ELEMENTS for n in (start, stop, *shape))
        or stop > data.numel()
    ):
        raise FlatError(f"a shape, or a place, that is none in {data.numel()} bytes")
    if stop - start != math.prod(shape) * kind.itemsize:
        raise FlatError(f"shape {shape} of {dtype} is not of {stop - start} bytes")
    part = data[start:stop]
    if (part.data_ptr() | part.storage_offset()) % kind.itemsize:
        part = part.clone()  # another writer's order, or of no bytes
    return part.view(kind).view(shape)


def _order(entry: tuple[str, torch.Tensor]) -> tuple[bool, int, str]:
    """Whole blocks first, then by the size of an element: every tensor starts where its type may."""
    name, tensor = entry
    return bool(tensor.numel() * tensor.element_size() % BLOCK), -tensor.element_size(), name


def stored_shapes(folder: Path, where: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors in a folder's safetensors files; none where there is no such file.

    Raises:
        EngineError: One of them is no safetensors file; begins with `where`.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:  # eight bytes of length, little-endian, then the header as JSON
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            header.pop("__metadata__", None)
            shapes |= {name: tuple(entry["shape"]) for name, entry in header.items()}
        except (OSError, AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise EngineError(f"{where}: {path} is no safetensors file: {error}") from error
    return shapes
