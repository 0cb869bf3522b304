"""Both ends of a weight sync: the trainer's sender, and the receiver next to an engine in another process.

In the same process nothing has to be moved: the engine gets the tensors. Elsewhere sender and receiver share a control
channel, HTTP, and the bytes go through that channel (`http`, also called `inline`) or through memory that both
processes have mapped (`shm`). `auto` is shared memory where it works, and prints a line where it doesn't.

Only whole versions are loaded: the engine is called when everything has arrived. docs/sync.md describes what proves the
arrival.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from grpo_core.rollout.engine import Engine, EngineError, EngineTimeoutError
from grpo_core.rollout.weights.flat import Flat, parse_tensors

# The control channel, called with `sync_open` or `sync_load`, the arguments (see `Receiver`), and for the latter
# perhaps a `Flat`. It returns the receiver's answer, and raises EngineError for a refusal.
Call = Callable[..., dict[str, Any]]

_PAGE = 4096
_LABEL = "grpo-core-weights"
_DESCRIPTOR = re.compile(r"/proc/[0-9]{1,10}/fd/[0-9]{1,10}")


class SetUpError(EngineError):
    """Raised when a transport can't be set up between these two processes; nothing was sent."""


class TornError(EngineError):
    """Raised when a version was replaced while an engine loaded it: the engine may hold a mix of two."""


class Sender:
    """Sends weights through shared memory or the control channel."""

    KINDS = ("auto", "inline", "http", "shm")

    def __init__(self, kind: str, call: Call) -> None:
        """Open nothing yet: the size is known with the first version.

        Args:
            kind: A value of `rollout.sync`.
            call: The control channel.

        Raises:
            EngineError: There is no such kind.
        """
        if kind not in self.KINDS:
            raise EngineError(f"rollout.sync = {kind!r}: there are {', '.join(self.KINDS)}")
        self._kind, self._call = kind, call
        self._memory: torch.Tensor | None = None

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> int:
        """Send all parameters, wait until the engine has loaded them, and return the version it then reports.

        Raises:
            SetUpError: Shared memory does not work here.
            EngineError: The other side died, refused or did not answer in time.
        """
        flat = Flat(tensors, version)
        arguments, payload = {"version": version, "size": flat.size}, None
        memory = self._shared_memory(flat.size)
        if memory is not None:
            counters = _counters(memory)
            generation = int(counters[0]) + 1
            counters[0] = generation
            flat.fill(memory[_PAGE : _PAGE + flat.size])
            counters[1] = arguments["generation"] = generation
        else:
            payload = flat
        return int(self._call("sync_load", arguments, payload)["version"])

    def close(self) -> None:
        """Free the memory; safe to call twice. The mapping ends with the last tensor that uses it."""
        self._memory = None

    def _shared_memory(self, size: int) -> torch.Tensor | None:
        """Return memory with room for `size` bytes behind its first page; None: use the control channel."""
        if self._kind in ("inline", "http"):
            return None
        if self._memory is None or self._memory.numel() < size + _PAGE:
            self._memory = None  # given back before more is allocated
            try:
                self._memory = self._share(size + _PAGE)
            except SetUpError as error:
                if self._kind == "shm" or isinstance(error.__cause__, EngineTimeoutError):
                    raise
                print(f"grpo_core: {error}; weights go inline, which is slower", file=sys.stderr)
                self._kind = "inline"
        return self._memory

    def _share(self, size: int) -> torch.Tensor:
        try:
            descriptor = _allocate(size)
            try:
                memory = _map_memory(descriptor, size)
                self._call("sync_open", {"name": f"/proc/{os.getpid()}/fd/{descriptor}", "size": size})
            finally:
                os.close(descriptor)
        except (OSError, EngineError) as error:
            raise SetUpError(
                f"weight sync by shared memory: {size} bytes for both processes: {error}; make room, let the engine "
                "see the trainer's processes, or choose another rollout.sync"
            ) from error
        return memory


class Receiver:
    """Maps a sender's memory: only a sealed memfd of the same user that has the announced size."""

    _memory: torch.Tensor | None = None

    def open(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Map the memory `name` of `size` bytes, in place of an earlier one."""
        self.close()
        name, size = arguments["name"], arguments["size"]
        try:
            target = str(Path(name).readlink()) if _DESCRIPTOR.fullmatch(name) else ""
            if not target.startswith(f"/memfd:{_LABEL}"):
                raise EngineError(f"weight sync by shared memory: {name!r} is nothing that a sender makes")
            descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC)
            try:
                status = os.fstat(descriptor)
                sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
                if status.st_uid != os.geteuid() or status.st_size != size or size < _PAGE or not sealed:
                    raise EngineError(
                        f"weight sync by shared memory: {name} has {status.st_size} bytes and user "
                        f"{status.st_uid}; expected {size} bytes of user {os.geteuid()}, sealed"
                    )
                self._memory = _map_memory(descriptor, size)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise EngineError(f"weight sync by shared memory: {error}") from error
        return {}

    def load(self, arguments: Mapping[str, Any], engine: Engine) -> dict[str, Any]:
        """Load a version of `size` bytes into the engine; return the version that the engine then reports."""
        memory, size, generation = self._memory, arguments["size"], arguments["generation"]
        if memory is None or not 0 < size <= memory.numel() - _PAGE:
            raise EngineError(f"weight sync by shared memory: {size} bytes are not open; open them first")
        if fault := _counter_fault(memory, generation):
            raise EngineError(f"{fault}; nothing was loaded")
        tensors = parse_tensors(memory[_PAGE : _PAGE + size], "weight sync by shared memory")
        engine.update_weights(tensors.items(), arguments["version"])
        if fault := _counter_fault(memory, generation):
            raise TornError(f"{fault}; the engine may hold a mix of two versions; send one again")
        return {"version": engine.policy_version}

    def close(self) -> None:
        """Unmap the memory; safe to call twice."""
        self._memory = None


def _counter_fault(memory: torch.Tensor, generation: int) -> str:
    """Describe the fault if the memory doesn't contain exactly this update, complete; else return an empty text."""
    started, finished = _counters(memory).tolist()
    if started == finished == generation:
        return ""
    return (
        f"weight sync by shared memory: the writing of update {generation} was announced, but {started} had begun and "
        f"{finished} was done: it was replaced while it was read, or is half written"
    )


def _counters(memory: torch.Tensor) -> torch.Tensor:
    """Return the counts of started and finished updates [2], in place."""
    return memory[:16].view(torch.int64)


def _allocate(size: int) -> int:
    """Return a descriptor of memory without a name."""
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no memory without a name (memfd_create)")
    descriptor = os.memfd_create(_LABEL, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        # Allocated now: a page that isn't there when it is used would end the process (SIGBUS).
        os.posix_fallocate(descriptor, 0, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _map_memory(descriptor: int, size: int) -> torch.Tensor:
    # Populated at once, which is cheaper than a fault at each page.
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    return torch.frombuffer(mmap.mmap(descriptor, size, flags=flags), dtype=torch.uint8)
