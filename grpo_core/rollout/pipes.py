"""Child processes of the trainer, and JSON messages over a child's stdin and stdout.

A child ends with its parent: however the parent ends, the pipe does too, and the child reads its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def write_message(stream: IO[bytes], document: dict[str, Any]) -> None:
    """Send one message, a line of JSON."""
    stream.write(json.dumps(document).encode() + b"\n")
    stream.flush()


def read_message(stream: IO[bytes]) -> dict[str, Any] | None:
    """Receive one message; None if the other side has closed the pipe."""
    line = stream.readline()
    return json.loads(line) if line.endswith(b"\n") else None


def start_child(
    arguments: Sequence[str], threads: int, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start `python -m ...` with this package importable, and pipes for stdin and stdout; it shares stderr.

    It gets a new session: Ctrl-C at the terminal reaches only the trainer, which ends its child in order.
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
    """Close the child's stdin, on which it ends by itself; kill it if it doesn't. Safe to call twice."""
    if process.stdin is not None:
        # If it died with a message half sent, closing would still try to deliver the rest.
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(timeout=grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
