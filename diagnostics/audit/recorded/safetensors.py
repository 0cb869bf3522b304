"""Read safetensors files without torch: names, types, shapes, and elements as numbers. Files are mapped into memory."""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnostics import safe_io

# Bytes of an element and its struct code; bfloat16 is the upper half of a float32.
TYPES = {
    "F64": (8, "d"), "F32": (4, "f"), "F16": (2, "e"), "BF16": (2, "H"), "I64": (8, "q"), "I32": (4, "i"),
    "I16": (2, "h"), "I8": (1, "b"), "U8": (1, "B"), "BOOL": (1, "?"), "U16": (2, "H"), "U32": (4, "I"), "U64": (8,
    "Q"),
}  # fmt: skip
_MAX_HEADER = 64 * safe_io.MIB
# The product of numbers with thousands of digits takes minutes.
_MAX_DIMENSIONS, _MAX_ELEMENTS = 32, 1 << 48


@dataclass(frozen=True)
class Tensor:
    """One tensor; its bytes are not copied."""

    name: str
    kind: str
    shape: tuple[int, ...]
    data: memoryview

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)


def parse(data: bytes | memoryview) -> dict[str, Tensor]:
    """Return the tensors in a file's bytes.

    Raises:
        ValueError: These are not safetensors, or they are cut off.
    """
    view = memoryview(data)
    if len(view) < 8:
        raise ValueError("cut off: shorter than the length of its header")
    (length,) = struct.unpack("<Q", view[:8])
    if length > min(_MAX_HEADER, len(view) - 8):
        raise ValueError("not safetensors, or cut off: the header is longer than the file")
    header = safe_io.parse_json(bytes(view[8 : 8 + length]))
    if not isinstance(header, dict):
        raise TypeError("not safetensors: the header is not an object")
    body = view[8 + length :]
    return {name: _tensor(name, entry, body) for name, entry in header.items() if name != "__metadata__"}


def _tensor(name: str, entry: Any, body: memoryview) -> Tensor:
    kind, shape, (start, end) = str(entry["dtype"]), tuple(map(int, entry["shape"])), entry["data_offsets"]
    if len(shape) > _MAX_DIMENSIONS or not all(0 <= size <= _MAX_ELEMENTS for size in shape):
        raise ValueError(f"{name}: impossible shape")
    width = TYPES.get(kind, (0, ""))[0]
    if not 0 <= start <= end <= len(body):
        raise ValueError(f"{name}: cut off: it ends at byte {end} of {len(body)}")
    if width and math.prod(shape) * width != end - start:
        raise ValueError(f"{name}: {end - start} bytes for {math.prod(shape)} elements of {kind}")
    return Tensor(name, kind, shape, body[start:end])


def map_file(path: Path) -> dict[str, Tensor]:
    """Map a file into memory and return its tensors.

    Raises:
        OSError: The file cannot be opened.
        ValueError: It is not safetensors, or cut off.
    """
    with safe_io.open_regular(path) as file:
        try:
            return parse(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}") from None


def elements(tensor: Tensor) -> list[Any]:
    """Return a tensor's elements as numbers."""
    view: Any = tensor.data
    if tensor.kind == "F16":
        return list(struct.unpack(f"<{len(view) // 2}e", view))
    values = view.cast(TYPES[tensor.kind][1]) if tensor.data else []
    if tensor.kind == "BF16":
        return list(memoryview(b"".join(struct.pack("<I", value << 16) for value in values)).cast("f"))
    return list(values)
