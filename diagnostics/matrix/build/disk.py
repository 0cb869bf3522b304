"""Keeps the environments of a store within a budget of disk."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from diagnostics.matrix.build.environments import MARKER

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def sizes(folder: Path) -> dict[Path, float]:
    """Returns the size of each whole environment in GB, the oldest first."""
    return whole(folder.iterdir()) if folder.is_dir() else {}


def whole(paths: Iterable[Path]) -> dict[Path, float]:
    """Returns the size in GB of those that are whole environments, the oldest first."""
    found = {}
    for path in sorted(paths, key=lambda item: item.stat().st_mtime):
        try:
            found[path] = float(json.loads((path / MARKER).read_text(encoding="utf-8"))["size_gb"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # half built: the next build removes it
    return found


def free_gb(path: Path) -> float:
    """Returns what is free where that path is, in GB of 1e9 bytes."""
    return shutil.disk_usage(path).free / 1e9


def remove(path: Path) -> None:
    """Removes an environment; its marker goes first, so that a kill leaves none that looks whole."""
    (path / MARKER).unlink(missing_ok=True)
    shutil.rmtree(path)


def within(folder: Path, budget_gb: float, needed_gb: float, *, keep: str) -> list[str]:
    """Removes environments, the oldest first, until one more fits into the budget; returns their names.

    Args:
        folder: where the environments are.
        budget_gb: what all of them may take together.
        needed_gb: what the next one is expected to take.
        keep: the one that is about to be used.
    """
    known = sizes(folder)
    known.pop(folder / keep, None)
    removed = []
    for path in list(known):
        if sum(known.values()) + needed_gb <= budget_gb:
            break
        remove(path)
        del known[path]
        removed.append(path.name)
    return removed
