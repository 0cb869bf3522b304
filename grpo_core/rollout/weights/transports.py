"""Getting a policy version from the trainer to an engine that is somewhere else, by any of five ways.

In the same process nothing has to be moved: the engine is handed the tensors. Elsewhere a *sender* (the trainer's side)
and a *receiver* (beside the engine) share a control channel that is there already, the pipe or HTTP, and the bytes go

* `inline` (over HTTP called `http`): through that channel itself;
* `shm`: through memory that both processes have mapped;
* `gloo`, `nccl`: by torch.distributed, in a group of these two;
* `files`: through a folder that both see.

`auto` is shared memory where it works, and says so where it doesn't. All of them load whole versions only: the
engine is called when everything is there. What proves that it arrived is described in docs/sync.md.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.weights.flat import Flat, received

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager


KINDS = ("auto", "inline", "http", "shm", "gloo", "nccl", "files")


class SetUpError(EngineError):
    """Raised when a transport can't be set up between these two processes; nothing was sent."""


class TornError(EngineError):
    """Raised when a version was replaced while an engine loaded it: the engine may hold a mix of two."""


class Call(Protocol):
    """The control channel: makes a call of the receiver and gives its answer; raises EngineError for a refusal."""

    def __call__(
        self, method: str, arguments: dict[str, Any], payload: Flat | None = None, /
    ) -> dict[str, Any]:
        """`method` is `sync_open`, `sync_begin` or `sync_load` (see `weights.receive.Receiver`)."""


class Sender(Protocol):
    """The trainer's side."""

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> int:
        """Sends all parameters, waits until the engine has loaded them, and returns the version it then reports.

        Raises:
            SetUpError: The transport does not work here.
            EngineError: The other side died, refused or did not answer in time.
        """

    def close(self) -> None:
        """Frees what the transport holds; safe to call twice."""


class Incoming(Protocol):
    """One transport's receiving end."""

    def begin(self, arguments: Mapping[str, Any]) -> None:
        """Starts to receive, where that takes a thread; returns at once."""

    def tensors(
        self, arguments: Mapping[str, Any], payload: bytearray | None
    ) -> AbstractContextManager[dict[str, torch.Tensor]]:
        """What was sent, complete; to be used inside the `with` only, whose end may find that it was replaced."""

    def close(self) -> None:
        """Frees what the transport holds; safe to call twice."""


class InlineSender:
    """The trainer's side."""

    def __init__(self, kind: str, call: Call) -> None:
        """`kind` is `inline` or `http`."""
        self._kind, self._call = kind, call

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> int:
        """See `Sender`."""
        flat = Flat(tensors, version)
        arguments = {"kind": self._kind, "version": version, "size": flat.size}
        return int(self._call("sync_load", arguments, flat)["version"])

    def close(self) -> None:
        """Nothing is held."""


class InlineReceiver:
    """The engine's side: what was sent comes with the call."""

    def begin(self, arguments: Mapping[str, Any]) -> None:
        """Nothing to start."""

    @contextmanager
    def tensors(
        self, arguments: Mapping[str, Any], payload: bytearray | None
    ) -> Iterator[dict[str, torch.Tensor]]:
        """See `Incoming`."""
        if payload is None or len(payload) != arguments["size"]:
            came = 0 if payload is None else len(payload)
            raise EngineError(f"weight sync inline: {came} bytes came, {arguments['size']} were announced")
        yield received(torch.frombuffer(payload, dtype=torch.uint8), "weight sync inline")

    def close(self) -> None:
        """Nothing is held."""


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
