"""Files that others wrote: regular ones up to a size, below the folder that was given where they must lie there."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# A step of a thousand long completions is some hundred megabytes.
LARGEST = 4 << 30
# What comes of reading as something what is something else.
UNREADABLE = (OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


def read(path: Path, *, inside: Path | None = None) -> bytes:
    """The whole of a file.

    Args:
        path: The file.
        inside: The folder in which it must lie, links resolved; None for anywhere.

    Raises:
        OSError: It is not there, or can't be read.
        ValueError: It is no regular file, too large, or lies elsewhere.
    """
    place = found_at(path, inside=inside)
    with os.fdopen(os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
            raise ValueError(f"{path}: expected a regular file of at most {LARGEST >> 30} GiB")
        data = file.read(found.st_size + 1)
    if len(data) > found.st_size:
        raise ValueError(f"{path}: it grows while it is read, or is made up by the kernel")
    return data


def found_at(path: Path, *, inside: Path | None = None) -> Path:
    """Where a regular file really lies; for what another program opens. Raises what `read` raises."""
    try:
        place = path.resolve()
    except RuntimeError:  # links in a circle, as Python says it before 3.13
        raise ValueError(f"{path}: links that lead in a circle") from None
    if inside is not None and not place.is_relative_to(inside.resolve()):
        raise ValueError(f"{path}: outside of {inside}")
    # What is no file is not even opened: a pipe would be waited for, and opening a device may do something.
    if not stat.S_ISREG(place.stat().st_mode):
        raise ValueError(f"{path}: no regular file")
    return place
