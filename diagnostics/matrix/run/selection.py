"""Which cells and layers a command is about. Refuses what it doesn't know, with what is close to it."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

from diagnostics.matrix.ask.registry import BY_NAME
from diagnostics.matrix.plan import breadth
from diagnostics.matrix.plan.cells import PROFILES, Cell, Matrix
from diagnostics.matrix.plan.layers import family
from diagnostics.matrix.plan.releases import FILE
from diagnostics.tables import TableError, close_matches

if TYPE_CHECKING:
    from collections.abc import Sequence


def cells(matrix: Matrix, globs: Sequence[str], profile: str | None) -> list[Cell]:
    """Returns the cells that match a pattern, or else those of the profile (`quick` unless named).

    The profile `breadth` has cells of its own, generated ones; patterns then choose among them.

    Raises:
        TableError: for a pattern that matches no cell, and for an unknown profile.
    """
    known = (*PROFILES, breadth.PROFILE)
    if profile is not None and profile not in known:
        raise TableError(
            f"unknown profile {profile!r}{close_matches(profile, known)}; there are {', '.join(known)}"
        )
    wide = profile == breadth.PROFILE
    all_cells = generated(matrix) if wide else matrix.cells
    for pattern in globs:
        if not any(fnmatch.fnmatchcase(cell.id, pattern) for cell in all_cells):
            close = close_matches(pattern, [cell.id for cell in all_cells])
            shown = breadth.PROFILE if wide else "full"
            raise TableError(f"no cell matches {pattern!r}{close}; --list --profile {shown} shows all")
    if globs:
        return [cell for cell in all_cells if any(fnmatch.fnmatchcase(cell.id, it) for it in globs)]
    if wide:
        return list(all_cells)
    # The full profile holds the quick one's cells too.
    wanted = {"quick"} if (profile or "quick") == "quick" else set(PROFILES)
    return [cell for cell in matrix.cells if wanted & set(cell.profiles)]


def generated(matrix: Matrix) -> tuple[Cell, ...]:
    """Returns the generated cells.

    Raises:
        TableError: when the file says nothing of them, or no list of releases is committed.
    """
    if matrix.breadth is None:
        raise TableError(f"{matrix.path}: expected a table [breadth] for the profile {breadth.PROFILE!r}")
    if matrix.releases is None:
        raise TableError(
            f"{matrix.path.parent / 'locks' / FILE}: is not there: "
            "`python -m diagnostics.matrix releases` writes it"
        )
    return breadth.cells(matrix)


def layers(lists: Sequence[str]) -> tuple[str, ...]:
    """Returns the layers named, `train` standing for all of its modes; nothing named means all.

    Raises:
        TableError: for an unknown layer.
    """
    names = [name.strip() for part in lists for name in part.split(",") if name.strip()]
    found: list[str] = []
    for name in names:
        # A layer's own name means it alone: `resolve` does not stand for `resolve:today`.
        matching = [name] if name in BY_NAME else [layer for layer in BY_NAME if layer.startswith(f"{name}:")]
        if not matching:
            raise TableError(
                f"unknown layer {name!r}{close_matches(name, BY_NAME)}; there are {', '.join(BY_NAME)}"
            )
        found += matching
    return tuple(dict.fromkeys(found))


def of_profile(matrix: Matrix, globs: Sequence[str], profile: str | None) -> tuple[str, ...]:
    """Returns the layers that a run of a profile asks where none are named; nothing means all.

    Cells that are named are asked everything.
    """
    if globs or (profile or "quick") != "quick" or not matrix.quick_without:
        return ()
    return tuple(layer for layer in BY_NAME if not {layer, family(layer)} & set(matrix.quick_without))


def with_needs(cell: Cell, wanted: Sequence[str]) -> list[str]:
    """Returns the wanted layers of a cell and all that they need, in order; all of them if none is wanted."""
    if not wanted:
        return list(cell.layers)
    needed: set[str] = set()
    open_ = [layer for layer in wanted if layer in cell.layers]
    while open_:
        layer = open_.pop()
        needed.add(layer)
        open_ += [name for name in BY_NAME[layer].needs if name in cell.layers and name not in needed]
    return [layer for layer in cell.layers if layer in needed]
