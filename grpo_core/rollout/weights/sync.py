"""Send weights between two processes: the trainer's sender, and the receiver next to the engine.

An engine in the same process gets the tensors themselves. For other processes the weights are a safetensors file: in
shared memory of this machine (`shm`), or in the body of a request (`http`, also called `inline`). `auto` uses shared
memory where it works; where it doesn't, it prints a line and uses `inline`.

The shared memory is a memfd for each version. It is sealed before its name is announced, so no later write can change
the weights that the engine loads. docs/sync.md describes how the arrival is proven.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from grpo_core.rollout.engine import EngineError, EngineTimeoutError, EngineUnreachableError

_LABEL = "grpo-core-weights"
_DESCRIPTOR = re.compile(r"/proc/[0-9]{1,10}/fd/[0-9]{1,10}")
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
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
    """Sends weights through shared memory or in the body of a request."""

    KINDS = ("auto", "inline", "http", "shm")

    def __init__(
        self, kind: str, load: Callable[[str, int], int], upload: Callable[[TensorFile, int], int]
    ) -> None:
        """Choose the transport; nothing is sent yet.

        Args:
            kind: A value of `rollout.sync`.
            load: Function of (name of shared memory, version) that makes the receiver load the memory; it returns the
                version that the receiver then reports.
            upload: Function of (file, version) that sends the file; it returns the version that the receiver then
                reports.

        Raises:
            EngineError: The kind is unknown.
        """
        if kind not in self.KINDS:
            raise EngineError(f"rollout.sync = {kind!r}: there are {', '.join(self.KINDS)}")
        self._kind, self._load, self._upload = kind, load, upload

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> int:
        """Send all parameters, wait until the engine has loaded them, and return the version it then reports.

        Raises:
            EngineError: The other side died, refused or did not answer in time, or shared memory does not work here.
        """
        file = TensorFile(tensors)
        if self._kind in ("auto", "shm"):
            try:
                with _shared(file) as name:
                    return self._load(name, version)
            except (EngineTimeoutError, EngineUnreachableError):
                raise
            except EngineError as error:
                if self._kind == "shm":
                    raise
                print(f"grpo_core: {error}; weights go inline, which is slower", file=sys.stderr)
                self._kind = "inline"
        return self._upload(file, version)


@contextmanager
def _shared(file: TensorFile) -> Iterator[str]:
    """Yield the path of sealed shared memory that contains a file; the memory is closed afterwards.

    Raises:
        EngineError: Sealed shared memory does not work here, or has no room for the file.
    """
    try:
        descriptor = os.memfd_create(_LABEL, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError) as error:
        raise EngineError(f"weight sync by shared memory: no memory without a name: {error}") from error
    try:
        try:
            # Allocate all pages now: a page that is missing at first use would end the process with SIGBUS.
            os.posix_fallocate(descriptor, 0, file.size)
            # Populate all pages at once, which costs less than a page fault for each.
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            # The mapping is bound to no name, so that it ends here: memory with a writable mapping can't be sealed.
            file.write(torch.frombuffer(mmap.mmap(descriptor, file.size, flags=flags), dtype=torch.uint8))
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            raise EngineError(
                f"weight sync by shared memory: {file.size} bytes for both processes: {error}; make room, or choose "
                "another rollout.sync"
            ) from error
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def load_shared(name: str, most: int) -> dict[str, torch.Tensor]:
    """Map the tensors in a sender's shared memory, without a copy.

    Args:
        name: Path of the memory, as the sender announces it.
        most: Largest size to accept, in bytes.

    Raises:
        EngineError: The path is not a sealed memfd of this user, the memory is too large, or is no safetensors file.
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
    """Return the tensors of a safetensors file that a sender chose.

    Raises:
        EngineError: The header is wrong, or names a type or a shape that torch lacks.
    """
    try:
        return load()
    except (SafetensorError, KeyError, TypeError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]  # torch adds the stack of its C++ code below
        raise EngineError(f"{source}: not safetensors: {reason}") from error
