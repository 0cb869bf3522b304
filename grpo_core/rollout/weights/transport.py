"""Move weights between two processes: the trainer's `Sender`, and the functions by which the engine's side reads them.

In the same process nothing has to be moved: the engine gets the tensors. Elsewhere the weights are a safetensors file:
in memory of this machine that both processes can read (`shm`), or in the body of a request (`http`). `load_shared` and
`load_tensors` read the file. `Sender` writes it. Its caller passes two functions: `load` makes the request that
announces the shared memory, `upload` the one that carries the file. docs/sync.md describes how the arrival is proven.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import re
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from grpo_core.rollout.engine import EngineError

_LABEL = "grpo-core-weights"
_DESCRIPTOR = re.compile(r"/proc/[0-9]{1,10}/fd/[0-9]{1,10}")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW  # a page that is cut off would end the reader (SIGBUS)
_TYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32",
    torch.int64: "I64", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


class TensorFile:
    """Tensors to write as a safetensors file, with one copy; the `save` function of safetensors makes two.

    Attributes:
        size: Size of the file, in bytes.
    """

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Compute the layout.

        Raises:
            EngineError: A tensor's type does not exist in safetensors.
        """
        # Larger elements first: every tensor is then aligned to its type.
        self._entries = sorted(tensors, key=lambda entry: (-entry[1].element_size(), entry[0]))
        table, end = {}, 0
        for name, tensor in self._entries:
            if tensor.dtype not in _TYPES:
                raise EngineError(f"weight sync: {name} has type {tensor.dtype}, which safetensors lacks")
            start, end = end, end + tensor.numel() * tensor.element_size()
            shape = list(tensor.shape)
            table[name] = {"dtype": _TYPES[tensor.dtype], "shape": shape, "data_offsets": [start, end]}
        text = json.dumps(table).encode()
        text += b" " * (-len(text) % 8)
        self._header = bytearray(len(text).to_bytes(8, "little") + text)
        self.size = len(self._header) + end

    def write(self, memory: torch.Tensor) -> None:
        """Write the file to a byte buffer of `size` bytes, from tensors on any device."""
        end = len(self._header)
        memory[:end] = torch.frombuffer(self._header, dtype=torch.uint8)
        for _, tensor in self._entries:
            start, end = end, end + tensor.numel() * tensor.element_size()
            if start < end:
                memory[start:end].view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())

    def to_bytes(self) -> memoryview:
        """Return the file, for the body of a request."""
        memory = torch.empty(self.size, dtype=torch.uint8)
        self.write(memory)
        return memoryview(memory.numpy())


class Sender:
    """Sends policy versions through shared memory or in the body of a request."""

    def __init__(
        self, kind: str, load: Callable[[str, int], int], upload: Callable[[TensorFile, int], int]
    ) -> None:
        """Choose the transport; nothing is sent yet.

        Args:
            kind: `shm`, `http`, or `auto`: shared memory where this system has it.
            load: Makes the receiver load shared memory of this name as a version; returns the version it then reports.
            upload: Sends a file as a version; returns the version that the receiver then reports.

        Raises:
            EngineError: The kind is unknown.
        """
        if kind not in ("auto", "http", "shm"):
            raise EngineError(f"rollout.sync = {kind!r}: there are auto, http and shm")
        self._shared = kind == "shm" or (kind == "auto" and hasattr(os, "memfd_create"))
        self._load, self._upload = load, upload
        self._memory: SharedMemory | None = None

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> int:
        """Send all parameters, wait until the engine has loaded them, and return the version it then reports.

        Raises:
            EngineError: The other side died, refused or did not answer in time, shared memory does not work here, or a
                tensor's type does not exist in safetensors.
        """
        file = TensorFile(tensors)
        if not self._shared:
            return self._upload(file, version)
        # The memory of the version before: its pages are there already. After a failure the engine may still read it.
        memory, self._memory = self._memory, None
        if memory is None or memory.size != file.size:
            memory = SharedMemory(file.size)
        file.write(memory.bytes)
        loaded = self._load(memory.name, version)
        self._memory = memory
        return loaded


class SharedMemory:
    """Sealed shared memory for a file, which another process opens by its path; freed with the object.

    Attributes:
        name: The path by which another process opens it.
        size: Its size in bytes, which the kernel keeps from changing.
        bytes: Its content, for the sender to write.
    """

    def __init__(self, size: int) -> None:
        """Allocate the memory.

        Raises:
            EngineError: There is no such memory here, or no room for it.
        """
        try:
            descriptor = os.memfd_create(_LABEL, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except (AttributeError, OSError) as error:
            raise EngineError(f"weight sync by shared memory: no memory without a name: {error}") from error
        weakref.finalize(self, os.close, descriptor)
        try:
            # Allocated now: a page that isn't there when it is used would end the process (SIGBUS).
            os.posix_fallocate(descriptor, 0, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            self.bytes = torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
        except OSError as error:
            raise EngineError(
                f"weight sync by shared memory: {size} bytes for both processes: {error}; make room, or set "
                "rollout.sync = 'http'"
            ) from error
        self.name, self.size = f"/proc/{os.getpid()}/fd/{descriptor}", size


def load_shared(name: str, most: int) -> dict[str, torch.Tensor]:
    """Map the tensors in a sender's shared memory, without a copy.

    Args:
        name: Path of the memory, as the sender announces it.
        most: Largest size to accept, in bytes.

    Raises:
        EngineError: It is something else than a sender's memory of this user, too large, or no safetensors file.
    """
    place = f"weight sync by shared memory: {name!r}"
    try:
        target = str(Path(name).readlink()) if _DESCRIPTOR.fullmatch(name) else ""
        if not target.startswith(f"/memfd:{_LABEL}"):
            raise EngineError(f"{place} is nothing that a sender makes")
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status, seals = os.fstat(descriptor), fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            if status.st_uid != os.geteuid() or status.st_size > most or seals & _SEALS != _SEALS:
                raise EngineError(
                    f"{place} has {status.st_size} bytes and user {status.st_uid}; expected at most {most} bytes of "
                    f"user {os.geteuid()}, sealed"
                )
            return load_tensors(place, lambda: load_file(f"/proc/self/fd/{descriptor}"))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise EngineError(f"{place}: {error}") from error


def load_tensors(source: str, load: Callable[[], dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Call `load`, which reads a sender's safetensors file; convert the errors that a malformed file causes.

    Raises:
        EngineError: The header is wrong, or names a type or a shape that torch lacks.
    """
    try:
        return load()
    except (SafetensorError, KeyError, TypeError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]  # torch adds the stack of its C++ code below
        raise EngineError(f"{source}: not safetensors: {reason}") from error
