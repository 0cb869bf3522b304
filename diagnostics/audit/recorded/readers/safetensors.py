"""Safetensors by header and memory map, without torch: names, types, shapes, and single elements as numbers."""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diagnostics import given

if TYPE_CHECKING:
    from pathlib import Path

# Bytes of an element, and how struct and memoryview name it; bfloat16 is the upper half of a float32.
TYPES = {
    "F64": (8, "d"), "F32": (4, "f"), "F16": (2, "e"), "BF16": (2, "H"), "I64": (8, "q"), "I32": (4, "i"),
    "I16": (2, "h"), "I8": (1, "b"), "U8": (1, "B"), "BOOL": (1, "?"),
    "U16": (2, "H"), "U32": (4, "I"), "U64": (8, "Q"),
}  # fmt: skip
_HEADER = 64 * given.MIB
# The product of numbers of thousands of digits takes minutes.
_MOST_DIMENSIONS, _MOST_ELEMENTS = 32, 1 << 48


@dataclass(frozen=True)
class Tensor:
    """One tensor, its bytes not copied."""

    name: str
    kind: str
    shape: tuple[int, ...]
    data: memoryview

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)


def of(data: bytes | memoryview) -> dict[str, Tensor]:
    """The tensors of a file's bytes.

    Raises:
        ValueError: It is no such file, or cut off.
    """
    view = memoryview(data)
    if len(view) < 8:
        raise ValueError("cut off: shorter than its header's length")
    (length,) = struct.unpack("<Q", view[:8])
    if length > min(_HEADER, len(view) - 8):
        raise ValueError("no safetensors, or cut off: its header is longer than the file")
    header = given.parsed(bytes(view[8 : 8 + length]))
    if not isinstance(header, dict):
        raise TypeError("no safetensors: its header is no object")
    body = view[8 + length :]
    return {name: _tensor(name, entry, body) for name, entry in header.items() if name != "__metadata__"}


def _tensor(name: str, entry: Any, body: memoryview) -> Tensor:
    kind, shape, (start, end) = str(entry["dtype"]), tuple(map(int, entry["shape"])), entry["data_offsets"]
    if len(shape) > _MOST_DIMENSIONS or not all(0 <= size <= _MOST_ELEMENTS for size in shape):
        raise ValueError(f"{name}: no tensor has such a shape")
    width = TYPES.get(kind, (0, ""))[0]
    if not 0 <= start <= end <= len(body):
        raise ValueError(f"{name}: cut off: it ends at byte {end} of {len(body)}")
    if width and math.prod(shape) * width != end - start:
        raise ValueError(f"{name}: {end - start} bytes for {math.prod(shape)} elements of {kind}")
    return Tensor(name, kind, shape, body[start:end])


def mapped(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, mapped and not read.

    Raises:
        OSError: It can't be opened.
        ValueError: It is no such file, or cut off.
    """
    with given.opened(path) as file:
        try:
            return of(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}") from None


def values(tensor: Tensor, step: int = 1) -> list[Any]:
    """Its elements as numbers, every `step`th of them."""
    view: Any = tensor.data
    taken: Any = []
    if tensor.kind == "F16":
        taken = struct.unpack(f"<{len(view) // 2}e", view)[::step]
    elif tensor.data:
        taken = view.cast(TYPES[tensor.kind][1])[::step]
    if tensor.kind == "BF16":
        return list(memoryview(b"".join(struct.pack("<I", each << 16) for each in taken)).cast("f"))
    return list(taken)
