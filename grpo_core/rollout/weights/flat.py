"""Weights laid out as a safetensors file: what every transport between two processes moves.

Bytes are written and read in place: the receiver uses the tensors where they arrived.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from grpo_core.rollout.engine import EngineError

# safetensors allows 100 MB. A hundred thousand tensors take 13 MB, and parsing the header blocks every other thread.
_MAX_HEADER = 2**24
_MAX_DIMENSIONS, _MAX_ELEMENTS = 16, 2**63  # both come from the file, and their product is computed
_MALFORMED = (AttributeError, TypeError, KeyError, ValueError, RecursionError, OverflowError, RuntimeError)
_TYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
_NAMES = {kind: name for name, kind in _TYPES.items()}


class Flat:
    """Tensors laid out as a safetensors file.

    Attributes:
        header: The bytes before the tensors.
        spans: Each tensor with start and end of its bytes, in their order.
        size: Size of the whole, in bytes.
    """

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Compute the layout.

        Raises:
            EngineError: safetensors has no such type, or a name occurs twice.
        """
        # Larger elements first: every tensor is then aligned to its type.
        entries = sorted(tensors, key=lambda entry: (-entry[1].element_size(), entry[0]))
        table: dict[str, Any] = {"__metadata__": {"format": "pt", "policy_version": str(version)}}
        end = 0
        for name, tensor in entries:
            if tensor.dtype not in _NAMES or name in table:
                raise EngineError(f"weight sync: {name} has type {tensor.dtype}, or occurs twice")
            start, end = end, end + tensor.numel() * tensor.element_size()
            shape = list(tensor.shape)
            table[name] = {"dtype": _NAMES[tensor.dtype], "shape": shape, "data_offsets": [start, end]}
        text = json.dumps(table).encode()
        text += b" " * (-len(text) % 8)
        self.header = bytearray(len(text).to_bytes(8, "little") + text)
        self.size = len(self.header) + end
        self.spans = [
            (tensor.detach(), *(len(self.header) + offset for offset in table[name]["data_offsets"]))
            for name, tensor in entries
        ]

    def fill(self, memory: torch.Tensor) -> None:
        """Write everything to memory [size] of bytes, whichever device the tensors are on."""
        memory[: len(self.header)] = torch.frombuffer(self.header, dtype=torch.uint8)
        for tensor, start, stop in self.spans:
            if start < stop:
                memory[start:stop].view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def joined(self) -> torch.Tensor:
        """Return everything as bytes [size], for the body of a request."""
        memory = torch.empty(self.size, dtype=torch.uint8)
        self.fill(memory)
        return memory


def parse_tensors(memory: torch.Tensor, source: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file in memory [N] of bytes, without a copy.

    Raises:
        EngineError: It is no safetensors file, is cut off, or is longer than its header says; begins with `source`.
    """
    try:
        length = int.from_bytes(bytes(memory[:8].tolist()), "little")
        if not 2 <= length <= min(_MAX_HEADER, memory.numel() - 8):
            raise ValueError(f"its header would have {length} of {memory.numel()} bytes")
        table = json.loads(memory[8 : 8 + length].cpu().numpy().tobytes())
        if not isinstance(table, dict):
            raise TypeError("a header that is no object")
        table.pop("__metadata__", None)
        data = memory[8 + length :]
        tensors = {name: _tensor(data, **entry) for name, entry in table.items()}
        end = 0
        for start, stop in sorted(entry["data_offsets"] for entry in table.values()):
            if start != end:
                raise ValueError(f"byte {end} of the data belongs to no tensor or to two")
            end = stop
        if end != data.numel():
            raise ValueError(f"{data.numel()} bytes of tensors, where the header has {end}")
    except _MALFORMED as error:
        raise EngineError(f"{source}: not safetensors: {error}; nothing was loaded") from error
    return tensors


def _tensor(data: torch.Tensor, dtype: str, shape: list[int], data_offsets: list[int]) -> torch.Tensor:
    kind, (start, stop) = _TYPES[dtype], data_offsets
    if len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"a shape of {len(shape)} dimensions; at most {_MAX_DIMENSIONS} are read")
    sizes = (start, stop, *shape)
    if not all(type(size) is int and 0 <= size < _MAX_ELEMENTS for size in sizes) or stop > data.numel():
        raise ValueError(f"a shape or an offset that does not fit in {data.numel()} bytes")
    if stop - start != math.prod(shape) * kind.itemsize:
        raise ValueError(f"shape {shape} of {dtype} does not have {stop - start} bytes")
    part = data[start:stop]
    if (part.data_ptr() | part.storage_offset()) % kind.itemsize:
        part = part.clone()  # another program's alignment, or no bytes at all
    return part.view(kind).view(shape)


def stored_shapes(folder: Path, source: str) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the tensors in a folder's safetensors files; empty where there are none.

    Raises:
        EngineError: A file is no safetensors file; begins with `source`.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:  # eight bytes of length, little-endian, then the header as JSON
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            header.pop("__metadata__", None)
            shapes |= {name: tuple(entry["shape"]) for name, entry in header.items()}
        except (OSError, *_MALFORMED) as error:
            raise EngineError(f"{source}: {path} is no safetensors file: {error}") from error
    return shapes
