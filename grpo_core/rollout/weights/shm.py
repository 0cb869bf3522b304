"""Weights through memory that trainer and engine have both mapped: one copy, and the engine reads it in place.

The memory is a file without a name (Linux's memfd): no other user can open it, the size of /dev/shm doesn't limit it,
and nothing is left of it when the two processes have ended, however they did. The receiver opens it as the sender's
descriptor, below /proc; so it needs the same user, and a container that sees the sender's process.

The first page holds two counters, `begun` and `done`. They differ while a version is being written; a reader that
finds other ones than it was told of, before or after, has read a mix, and says so.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.weights.base import SetUpError, TornError
from grpo_core.rollout.weights.flat import Flat, received

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from grpo_core.rollout.weights.base import Call

_PAGE = 4096
_LABEL = "grpo-core-weights"
_DESCRIPTOR = re.compile(r"/proc/[0-9]{1,10}/fd/[0-9]{1,10}")


class ShmSender:
    """The trainer's side."""

    def __init__(self, call: Call) -> None:
        """Opens nothing yet: the size is known with the first version."""
        self._call = call
        self._memory: torch.Tensor | None = None

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> int:
        """See `Sender`."""
        flat = Flat(tensors, version)
        if self._memory is None or self._memory.numel() < flat.size + _PAGE:
            self._memory = None  # given back before more is taken
            self._memory = self._opened(flat.size + _PAGE)
        counters = _counters(self._memory)
        generation = int(counters[0]) + 1
        counters[0] = generation
        flat.fill(self._memory[_PAGE : _PAGE + flat.size])
        counters[1] = generation
        arguments = {"kind": "shm", "version": version, "size": flat.size, "generation": generation}
        return int(self._call("sync_load", arguments)["version"])

    def close(self) -> None:
        """See `Sender`. The mapping ends with the last tensor on it."""
        self._memory = None

    def _opened(self, size: int) -> torch.Tensor:
        try:
            descriptor = _made(size)
            try:
                memory = _mapped(descriptor, size)
                name = f"/proc/{os.getpid()}/fd/{descriptor}"
                self._call("sync_open", {"kind": "shm", "name": name, "size": size})
            finally:
                os.close(descriptor)
        except (OSError, EngineError) as error:
            raise SetUpError(
                f"weight sync by shared memory: {size} bytes for both processes: {error}; make room, let the engine "
                "see the trainer's processes, or choose another rollout.sync"
            ) from error
        return memory


class ShmReceiver:
    """The engine's side."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """Maps what the sender made.

        Raises:
            EngineError: It isn't there, or isn't what a sender of this user makes.
        """
        name, size = arguments["name"], arguments["size"]
        try:
            if not _DESCRIPTOR.fullmatch(name) or not str(Path(name).readlink()).startswith(
                f"/memfd:{_LABEL}"
            ):
                raise EngineError(f"weight sync by shared memory: {name!r} is nothing that a sender makes")
            descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC)
            try:
                found = os.fstat(descriptor)
                sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
                if found.st_uid != os.geteuid() or found.st_size != size or size < _PAGE or not sealed:
                    raise EngineError(
                        f"weight sync by shared memory: {name} has {found.st_size} bytes and user {found.st_uid}; "
                        f"expected {size} bytes of user {os.geteuid()}, sealed"
                    )
                self._memory: torch.Tensor | None = _mapped(descriptor, size)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise EngineError(f"weight sync by shared memory: {error}") from error

    def begin(self, arguments: Mapping[str, Any]) -> None:
        """Nothing to start."""

    @contextmanager
    def tensors(
        self, arguments: Mapping[str, Any], payload: bytearray | None
    ) -> Iterator[dict[str, torch.Tensor]]:
        """See `Incoming`: the tensors lie in the shared memory itself."""
        del payload
        memory, size = self._memory, arguments["size"]
        if memory is None or not 0 < size <= memory.numel() - _PAGE:
            raise EngineError(
                f"weight sync by shared memory: {size} bytes are announced, and don't fit what is open"
            )
        wrong = _out_of_step(memory, arguments["generation"])
        if wrong:
            raise EngineError(f"{wrong}; nothing was loaded")
        yield received(memory[_PAGE : _PAGE + size], "weight sync by shared memory")
        wrong = _out_of_step(memory, arguments["generation"])
        if wrong:
            raise TornError(f"{wrong}; the engine may hold a mix of two versions; send one again")

    def close(self) -> None:
        """See `Incoming`."""
        self._memory = None


def _out_of_step(memory: torch.Tensor, generation: int) -> str:
    """What is wrong if the memory doesn't hold this very update, whole; nothing: it does."""
    begun, done = _counters(memory).tolist()
    if begun == done == generation:
        return ""
    return (
        f"weight sync by shared memory: the writing of update {generation} was announced, but {begun} had begun and "
        f"{done} was done: it was replaced while it was read, or is half written"
    )


def _made(size: int) -> int:
    """A descriptor of memory without a name."""
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no memory without a name (memfd_create)")
    descriptor = os.memfd_create(_LABEL, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        # Taken now, and for good: a page that isn't there when it is used would end the process (SIGBUS).
        os.posix_fallocate(descriptor, 0, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _mapped(descriptor: int, size: int) -> torch.Tensor:
    # Populated at once, which is cheaper than a fault at each page.
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    return torch.frombuffer(mmap.mmap(descriptor, size, flags=flags), dtype=torch.uint8)


def _counters(memory: torch.Tensor) -> torch.Tensor:
    """`begun` and `done` [2], in place."""
    return memory[:16].view(torch.int64)
