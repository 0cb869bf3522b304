"""What an error that is no fault of ours comes from, in a sentence: a package that is missing, a disk that is full."""

from __future__ import annotations

import errno
import re

# What the extra of that name brings.
_TRAIN = frozenset({"fastapi", "safetensors", "torch", "transformers", "uvicorn"})
_CPU = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
# What the system says where nothing more can be written, and what Rust's libraries make of it.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TOLD = re.compile(rf"\(os error ({'|'.join(map(str, _FULL))})\)")


def known(error: Exception) -> str:
    """The sentence; empty for an error that is a fault of ours."""
    return not_installed(error) or _full(error)


def _full(error: Exception) -> str:
    """Says what to do where there is no room to write."""
    if not (isinstance(error, OSError) and error.errno in _FULL) and not _TOLD.search(str(error)):
        return ""
    return (
        f"nothing more can be written: {error}; make room in output.dir's file system, and --resume goes on from the "
        "last checkpoint"
    )


def not_installed(error: Exception) -> str:
    """Says what to install where a module is missing; empty for any other error, and for a module of ours."""
    found: BaseException | None = error
    # Transformers leaves the name to its error's cause.
    while isinstance(found, ModuleNotFoundError) and not found.name:
        found = found.__cause__
    module = (found.name or "").partition(".")[0] if isinstance(found, ModuleNotFoundError) else ""
    if module in {"", "grpo_core"}:
        return ""
    wanted = "'grpo-doctor[train]'" if module in _TRAIN else module
    # What comes with it unasked is said before it comes.
    more = f" (with CUDA: gigabytes; the CPU's comes by {_CPU} first)" if module == "torch" else ""
    return f"{module} is not installed here: pip install {wanted}{more}"
