"""Read files from untrusted sources: regular files of limited size, inside a folder if required.

`read_bytes` reads a file, and `resolve_file` returns its real path. `open_output` and `write_atomically` create files
that only their owner can read, and follow no link at the path.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

# A step of a thousand long completions takes some hundred megabytes.
MAX_BYTES = 4 << 30
# Exceptions that reading and parsing raise if a file cannot be read or its data has another structure.
UNREADABLE = (OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


def read_bytes(path: Path, *, inside: Path | None = None) -> bytes:
    """Read a regular file.

    Args:
        path: Path of the file.
        inside: Folder that must contain the file after links are resolved; None allows any folder.

    Raises:
        OSError: The file does not exist, or can't be read.
        ValueError: The file is not regular, too large, outside of the folder, or grows while it is read.
    """
    target = resolve_file(path, inside=inside)
    with os.fdopen(os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise ValueError(f"{path}: expected a regular file of at most {MAX_BYTES >> 30} GiB")
        data = file.read(status.st_size + 1)
    if len(data) > status.st_size:
        raise ValueError(f"{path}: it grows while it is read, or is made up by the kernel")
    return data


def resolve_file(path: Path, *, inside: Path | None = None) -> Path:
    """Return the real path of a regular file; raises the errors of `read_bytes`."""
    try:
        target = path.resolve()
    except RuntimeError:  # circular links, in Python before 3.13
        raise ValueError(f"{path}: links that lead in a circle") from None
    if inside is not None and not target.is_relative_to(inside.resolve()):
        raise ValueError(f"{path}: outside of {inside}")
    # Checked before opening: opening a pipe would block, and opening a device may have effects.
    if not stat.S_ISREG(target.stat().st_mode):
        raise ValueError(f"{path}: no regular file")
    return target


def open_output(path: Path, *, keep: bool) -> BinaryIO:
    """Open a file for appending; without `keep`, replace it. With `keep`, a link at the path raises an OSError."""
    if not keep:
        path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "ab")


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file completely or not at all; each process has its own temporary name."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with open_output(part, keep=False) as file:
        file.write(data)
    part.replace(path)
