"""Read tensors in the safetensors format without torch or the safetensors package: dtypes, shapes, bytes, elements.

`parse` takes bytes; `map_file` maps a file into memory instead of reading it. Untrusted input is checked: size of the
header, shapes, offsets, the size of each tensor whose dtype is known, and the size of all tensors together. `elements`
converts F64, F32, I64, I32, U8 and BOOL, and no other dtype.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnostics import safe_io

# Bytes of an element of each dtype, and format codes of `memoryview.cast`.
_DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1,
}  # fmt: skip
_CAST_CODES = {"F64": "d", "F32": "f", "I64": "q", "I32": "i", "U8": "B", "BOOL": "?"}
_MAX_HEADER = 64 * safe_io.MIB
# The product of numbers with thousands of digits takes minutes.
_MAX_DIMENSIONS, _MAX_ELEMENTS = 32, 1 << 48


@dataclass(frozen=True)
class Tensor:
    """One tensor; its bytes are not copied."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


def parse(data: bytes | memoryview) -> dict[str, Tensor]:
    """Return the tensors in a file's bytes.

    Raises:
        ValueError: The bytes are not safetensors, or are cut off.
        TypeError: The header is not an object, or an entry has values of a wrong type.
        KeyError: An entry of the header lacks a key.
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
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    tensors = {name: _tensor(name, entry, body) for name, entry in entries.items()}
    if sum(len(tensor.data) for tensor in tensors.values()) > len(body):
        raise ValueError("not safetensors: tensors share bytes")
    return tensors


def _tensor(name: str, entry: Any, body: memoryview) -> Tensor:
    """Return the tensor of an entry of the header, after checking its shape, offsets and size."""
    dtype, sizes, (start, end) = str(entry["dtype"]), entry["shape"], entry["data_offsets"]
    if len(sizes) > _MAX_DIMENSIONS or not all(0 <= size <= _MAX_ELEMENTS for size in sizes):
        raise ValueError(f"{name}: impossible shape")
    width, shape = _DTYPE_BYTES.get(dtype, 0), tuple(map(int, sizes))
    if not 0 <= start <= end <= len(body):
        raise ValueError(f"{name}: cut off: it ends at byte {end} of {len(body)}")
    if width and math.prod(shape) * width != end - start:
        raise ValueError(f"{name}: {end - start} bytes for {math.prod(shape)} elements of {dtype}")
    return Tensor(name, dtype, shape, body[start:end])


def map_file(path: Path) -> dict[str, Tensor]:
    """Map a file into memory and return its tensors; raises the errors of `parse`, and OSError."""
    with safe_io.open_regular(path) as file:
        try:
            return parse(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}") from None


def elements(tensor: Tensor) -> list[Any]:
    """Return a tensor's elements as numbers.

    Raises:
        KeyError: Its dtype is none of these: F64, F32, I64, I32, U8, BOOL.
    """
    return list(tensor.data.cast(_CAST_CODES[tensor.dtype])) if tensor.data else []  # type: ignore[call-overload]
