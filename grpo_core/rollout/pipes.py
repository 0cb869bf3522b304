"""Messages between the trainer and a child process, over the child's stdin and stdout.

A message is a JSON document and, behind it, bytes (safetensors, for weights). Nothing is pickled. The child
dies with its parent: the pipe ends when the parent does, however it ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import struct
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LENGTHS = struct.Struct("!QQ")  # of the JSON and of the bytes behind it


def write_frame(
    stream: IO[bytes] | LimitedPipe,
    document: dict[str, Any],
    length: int = 0,
    pieces: Iterable[memoryview] = (),
) -> None:
    """Sends one message, and behind it bytes: pieces of `length` in all."""
    text = json.dumps(document).encode()
    stream.write(_LENGTHS.pack(len(text), length) + text)
    for piece in pieces:
        stream.write(piece)
    stream.flush()


class LimitedPipe:
    """The writing end of a pipe, at which nobody waits longer than a limit for the other side to read on."""

    def __init__(self, stream: IO[bytes], limit_s: float) -> None:
        """Takes the stream over: nothing of its own buffer is used.

        Args:
            stream: To which nothing was written yet, or by another of these.
            limit_s: Seconds without a byte that is taken.
        """
        self._at, self._limit_s = stream.fileno(), limit_s
        os.set_blocking(self._at, False)
        self._room = select.poll()
        self._room.register(self._at, select.POLLOUT)

    def write(self, data: bytes | memoryview) -> None:
        """Writes all of it.

        Raises:
            TimeoutError: Nothing was taken within the limit; what was written is a part of it.
        """
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._at, left) :]
            except BlockingIOError:
                if not self._room.poll(self._limit_s * 1000):
                    raise TimeoutError from None

    def flush(self) -> None:
        """Nothing is held back."""


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], bytearray] | None:
    """Receives one message; None when the other side is gone."""
    try:
        text_length, payload_length = _LENGTHS.unpack(_exactly(stream, _LENGTHS.size))
        return json.loads(_exactly(stream, text_length)), _exactly(stream, payload_length)
    except EOFError:
        return None


def start_child(
    arguments: Sequence[str], threads: int, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts `python -m ...` with this package importable, pipes for frames, stderr shared, and more `variables`.

    In a session of its own: Ctrl-C at the terminal reaches the trainer alone, which ends its child in order.
    """
    package_root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    # OMP_NUM_THREADS holds in every thread of the child, torch.set_num_threads only in the calling one.
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads), **(variables or {})}
    for name in _TORCHRUN:  # an engine is no member of the training's process group
        environment.pop(name, None)
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


def end_child(process: subprocess.Popen[bytes], grace_s: float = 5.0) -> None:
    """Closes the child's stdin, on which it ends by itself; kills it if it doesn't. Safe to call twice."""
    if process.stdin is not None:
        # It may have died with a message half sent, which closing would still try to deliver.
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(timeout=grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _exactly(stream: Any, count: int) -> bytearray:
    data = bytearray(count)
    left = memoryview(data)
    while left:
        got = stream.readinto(left)
        if not got:
            raise EOFError
        left = left[got:]
    return data
