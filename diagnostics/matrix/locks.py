"""The committed locks: where they are, how they are written, and `lock`, which makes them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.matrix.identity import text_digest
from diagnostics.matrix.resolving import Resolution, declared, pins, runnable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from diagnostics.matrix.cells import Cell
    from diagnostics.matrix.workplace import Workplace

TIMEOUT_S = 300.0


def path(workplace: Workplace, cell: Cell, *, runs: bool) -> Path:
    """Returns the lock's file: of the declared environment, or of the one that `runs` without a GPU."""
    return workplace.locks / f"{cell.id}{'.cpu' if runs else ''}.txt"


def read(workplace: Workplace, cell: Cell, *, runs: bool) -> tuple[str, ...]:
    """Returns the pins of a committed lock, nothing if there is none."""
    file = path(workplace, cell, runs=runs)
    return pins(file.read_text(encoding="utf-8")) if file.exists() else ()


def digest(found: tuple[str, ...]) -> str:
    """Returns the digest of a lock; comments don't count."""
    return text_digest("\n".join(found)) if found else "none"


def contents(workplace: Workplace, cell: Cell) -> str:
    """Returns the digest of what the cell's environment is made of: its lock and what its recipe adds."""
    found = read(workplace, cell, runs=True)
    return digest((*found, *cell.recipe.additions(cell)) if found and cell.recipe else found)


def refresh(workplace: Workplace, cells: Iterable[Cell]) -> list[str]:
    """Resolves and writes the locks of these cells; returns one line for each that couldn't be made."""
    problems = []
    for cell in cells:
        workplace.say(f"{cell.id}: resolving what it declares")
        problems += _write(workplace, cell, declared(workplace, cell, timeout_s=TIMEOUT_S), runs=False)
        if cell.recipe is not None:
            workplace.say(f"{cell.id}: resolving what runs it")
            problems += _write(workplace, cell, runnable(workplace, cell, timeout_s=TIMEOUT_S), runs=True)
    return problems


def _write(workplace: Workplace, cell: Cell, found: Resolution, *, runs: bool) -> list[str]:
    file = path(workplace, cell, runs=runs)
    if not found.pins:
        expected = cell.expectation("resolve")
        if not runs and not found.infrastructure and expected is not None:
            file.unlink(missing_ok=True)
            return []
        return [f"{file.name}: {found.explanation}"]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_head(cell, runs=runs) + found.text, encoding="utf-8")
    return []


def _head(cell: Cell, *, runs: bool) -> str:
    what = f"trl[vllm]=={cell.trl} with vllm=={cell.vllm}, as declared"
    cut = cell.exclude_newer
    if runs and cell.recipe is not None:
        what = f"{cell.id} by the recipe {cell.recipe.name!r} of matrix.toml"
        cut = cell.recipe.exclude_newer or cut
    made = f"nox -s lock -- --cells '{cell.id}'"
    return f"# {what}; Python {cell.python}; nothing newer than {cut}.\n# Made by: {made}\n"
