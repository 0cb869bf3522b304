"""What planning has to know of a layer; what a layer asks, and how, stands in `ask/layers`, one file each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One question that cells can be asked."""

    name: str
    order: int
    """Where it stands in the table, and when a cell is asked it: what it needs comes before it."""
    needs: tuple[str, ...] = ()
    """Layers that must have passed."""
    heavy: bool = True
    """Runs in an environment; light layers of all cells come before the heavy ones of any."""
    of_pairs: bool = False
    """Generated pairs are asked it, too."""
    solves: bool = False
    """Looks for a solution of what a pair declares: none is expected where the metadata forbids the pair."""


def family(name: str) -> str:
    """Returns what stands for all layers of a kind: `train` for `train:async`."""
    return name.partition(":")[0]
