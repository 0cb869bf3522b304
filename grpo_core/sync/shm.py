"""Weights through memory that trainer and engine have both mapped: one copy, and the engine reads it in place.

The memory is a file of /dev/shm under a name that can't be guessed, for this user alone (0600). It has that name only
until the other side has opened it: from then on nothing is left behind, however either process ends. A name that a
kill in this moment leaves is removed by the next sender.

The first page holds two counters, `begun` and `done`. They differ while a version is being written; a reader that
finds other ones than it was told of, before or after, has read a mix, and says so.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import secrets
import stat
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from grpo_core.engines.base import EngineError
from grpo_core.sync import SetUpError
from grpo_core.sync.flat import Flat, FlatError, tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from grpo_core.sync import Call

FOLDER = Path("/dev/shm")  # noqa: S108 - not a temporary file: memory, under a secret name
_PAGE = 4096
_NAME = re.compile(r"grpo-core-([0-9]{1,10})-[0-9a-f]{32}")
_SURELY_LEFT_S = 60.0


class ShmSender:
    """The trainer's side."""

    def __init__(self, call: Call) -> None:
        """Opens nothing yet: the size is known with the first version."""
        self._call, self._folder = call, FOLDER
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
        sweep(self._folder)
        path = self._folder / f"grpo-core-{os.getpid()}-{secrets.token_hex(16)}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                # Taken now: a page that isn't there when it is written to would end the process (SIGBUS).
                os.posix_fallocate(descriptor, 0, size)
                memory = _mapped(descriptor, size)
                self._call("sync_open", {"kind": "shm", "name": str(path), "size": size})
            finally:
                os.close(descriptor)
                path.unlink(missing_ok=True)
        except (
            OSError,
            AttributeError,
            EngineError,
        ) as error:  # AttributeError: a system without posix_fallocate
            raise SetUpError(
                f"weight sync by shared memory: {size} bytes below {self._folder} for both processes: {error}; "
                "make room there, let both see it, or choose another rollout.sync"
            ) from error
        return memory


class ShmReceiver:
    """The engine's side."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """Maps what the sender made.

        Raises:
            EngineError: It isn't there, or isn't what a sender makes for its own user's processes.
        """
        path, size = Path(arguments["name"]), arguments["size"]
        if path.parent != FOLDER or not _NAME.fullmatch(path.name):
            raise EngineError(f"weight sync by shared memory: {str(path)!r} is no name that a sender gives")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                found = os.fstat(descriptor)
                private = stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077
                if not private or found.st_uid != os.geteuid() or found.st_size != size or size < _PAGE:
                    raise EngineError(
                        f"weight sync by shared memory: {path} has {found.st_size} bytes, user {found.st_uid} and "
                        f"mode {found.st_mode:o}; expected a file of {size} bytes that only user {os.geteuid()} reads"
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
        self._check(memory, arguments["generation"], "nothing was loaded")
        try:
            found = tensors_in(memory[_PAGE : _PAGE + size])
        except FlatError as error:
            raise EngineError(f"weight sync by shared memory: {error}; nothing was loaded") from error
        yield found
        self._check(
            memory, arguments["generation"], "the engine may hold a mix of two versions; send one again"
        )

    def close(self) -> None:
        """See `Incoming`."""
        self._memory = None

    @staticmethod
    def _check(memory: torch.Tensor, generation: int, outcome: str) -> None:
        begun, done = _counters(memory).tolist()
        if not begun == done == generation:
            raise EngineError(
                f"weight sync by shared memory: the writing of update {generation} was announced, but {begun} had "
                f"begun and {done} was done: it was replaced while it was read, or is half written; {outcome}"
            )


def sweep(folder: Path) -> None:
    """Removes what killed senders of this user left below `folder` more than a minute ago."""
    for path in folder.glob("grpo-core-*"):
        match = _NAME.fullmatch(path.name)
        with contextlib.suppress(OSError):
            found = path.lstat()
            old = time.time() - found.st_mtime > _SURELY_LEFT_S
            if match and old and found.st_uid == os.geteuid() and not _lives(int(match[1])):
                path.unlink()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _mapped(descriptor: int, size: int) -> torch.Tensor:
    # Populated at once, which is cheaper than a fault at each page.
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    return torch.frombuffer(mmap.mmap(descriptor, size, flags=flags), dtype=torch.uint8)


def _counters(memory: torch.Tensor) -> torch.Tensor:
    """`begun` and `done` [2], in place."""
    return memory[:16].view(torch.int64)
