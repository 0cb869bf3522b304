"""Weights through a folder that trainer and engine both see: on one machine, or on a shared file system.

A version is written aside, renamed when it is whole, and removed when it is loaded. The receiver reads below its own
root only: a sender gives a bare name.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import secrets
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.weights.digest import Checksum
from grpo_core.rollout.weights.flat import PIECE, Flat, received
from grpo_core.rollout.weights.transports import SetUpError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from grpo_core.rollout.weights.transports import Call

_NAME = re.compile(r"weights-[0-9]{1,20}-[0-9a-f]{32}\.safetensors")


def open_sender(_: str, call: Call, *, root: Path | None, **others: Any) -> FileSender:
    """For `weights.send.open_sender`; a folder is all that counts here."""
    del others
    if root is None:
        raise EngineError("rollout.sync = 'files': it needs a folder that both sides see")
    return FileSender(call, root)


def open_receiver(_: str, __: Mapping[str, Any], *, root: Path | None, **others: Any) -> FileReceiver:
    """For `weights.receive.open_receiver`."""
    del others
    return FileReceiver(root)


class FileSender:
    """The trainer's side."""

    def __init__(self, call: Call, root: Path) -> None:
        """`root` is the folder that the receiver was started with, as the trainer sees it."""
        self._call, self._root, self._open = call, root, False

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> int:
        """See `Sender`."""
        if not self._open:
            self._call("sync_open", {"kind": "files"})
            self._open = True
        flat, checksum = Flat(tensors, version), Checksum()
        path = self._root / f"weights-{version}-{secrets.token_hex(16)}.safetensors"
        aside = path.with_suffix(".unfinished")
        try:
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123 - only this user may read it
                for piece in flat.pieces():
                    checksum.update(piece)
                    _write(file, piece)
            aside.replace(path)
            arguments = {"kind": "files", "version": version, "size": flat.size, "name": path.name}
            return int(self._call("sync_load", {**arguments, "checksum": checksum.digest().hex()})["version"])
        except OSError as error:
            raise SetUpError(
                f"weight sync by files: {aside}, {flat.size} bytes: {error}; make room below {self._root}, "
                "or choose another rollout.sync"
            ) from error
        finally:
            for left in (aside, path):
                with contextlib.suppress(OSError):
                    left.unlink(missing_ok=True)

    def close(self) -> None:
        """See `Sender`."""


class FileReceiver:
    """The engine's side."""

    def __init__(self, root: Path | None) -> None:
        """`root` is below which files are read.

        Raises:
            EngineError: None was given at the start.
        """
        if root is None or not root.is_dir():
            raise EngineError(
                f"weight sync by files: this engine was started with no folder for it (root: {root})"
            )
        self._root = root

    def begin(self, arguments: Mapping[str, Any]) -> None:
        """Nothing to start."""

    @contextmanager
    def tensors(
        self, arguments: Mapping[str, Any], payload: bytearray | None
    ) -> Iterator[dict[str, torch.Tensor]]:
        """See `Incoming`: the tensors lie in the mapped file."""
        del payload
        name, size = arguments["name"], arguments["size"]
        if not _NAME.fullmatch(name):
            raise EngineError(f"weight sync by files: {name!r} is no name that a sender gives")
        try:
            memory = _mapped(self._root / name, size)
        except (OSError, ValueError) as error:
            raise EngineError(f"weight sync by files: {self._root / name}: {error}") from error
        checksum = Checksum()
        view = memoryview(memory.numpy())
        for at in range(0, size, PIECE):
            checksum.update(view[at : at + PIECE])
        if checksum.digest().hex() != arguments["checksum"]:
            raise EngineError(f"weight sync by files: {self._root / name}: not the bytes that were written")
        yield received(memory, f"weight sync by files: {self._root / name}")

    def close(self) -> None:
        """See `Incoming`."""


def _write(file: Any, piece: memoryview) -> None:
    while len(piece):
        piece = piece[file.write(piece) :]


def _mapped(path: Path, size: int) -> torch.Tensor:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != size or not size:
            raise ValueError(f"has {found.st_size} bytes, expected a file of {size}")
        # Torch wants memory that could be written: what would be is a copy, and never the file.
        held = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)
    return torch.frombuffer(held, dtype=torch.uint8)
