"""The committed locks: where they are, how they are written, and `lock`, which makes them again."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from diagnostics.matrix.build import pylock
from diagnostics.matrix.build.resolving import Resolution, declared, kept, packages, pins, runnable
from diagnostics.matrix.records.identity import text_digest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.plan.cells import Cell

TIMEOUT_S = 300.0


def path(workplace: Workplace, cell: Cell, *, runs: bool) -> Path:
    """Returns the lock's file: of the declared environment, or of the one that `runs` without a GPU."""
    return workplace.locks / f"{cell.id}{'.cpu' if runs else ''}.txt"


def read(workplace: Workplace, cell: Cell, *, runs: bool) -> tuple[str, ...]:
    """Returns the pins of a committed lock, nothing if there is none."""
    file = path(workplace, cell, runs=runs)
    return pins(file.read_text(encoding="utf-8")) if file.exists() else ()


def whole(workplace: Workplace, cell: Cell) -> bool:
    """Tells whether each line of the lock that runs the cell carries a hash."""
    return not bare(path(workplace, cell, runs=True).read_text(encoding="utf-8"))


def bare(text: str) -> list[str]:
    r"""Returns the pins of a lock that carry no hash: of what a folder of wheels gave, which are taken as they are.

    >>> bare("# a lock\na==1 \\\n    --hash=sha256:00\nb==2\n")
    ['b==2']
    """
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#") and " --hash=" not in line]


def digest(found: tuple[str, ...]) -> str:
    """Returns the digest of a lock; comments don't count."""
    return text_digest("\n".join(found)) if found else "none"


def contents(workplace: Workplace, cell: Cell) -> str:
    """Returns the digest of what the cell's environment is made of: its lock and what its recipe adds."""
    found = read(workplace, cell, runs=True)
    return digest((*found, *cell.recipe.additions(cell)) if found and cell.recipe else found)


def refresh(workplace: Workplace, cells: Iterable[Cell], *, keep: bool = False) -> list[str]:
    """Resolves and writes the locks of these cells; returns one line for each that couldn't be made.

    Args:
        workplace: where.
        cells: whose locks.
        keep: a lock that is there keeps its versions; only the hashes of their files are looked up.
    """
    problems = []
    for cell in cells:
        for runs in (False, True)[: 1 if cell.recipe is None else 2]:
            pinned = read(workplace, cell, runs=runs) if keep else ()
            what = "hashes of" if pinned else "resolving"
            workplace.say(f"{cell.id}: {what} what {'runs it' if runs else 'it declares'}")
            if pinned:
                found = kept(workplace, cell, pinned, runs=runs, timeout_s=TIMEOUT_S)
            else:
                found = (runnable if runs else declared)(workplace, cell, timeout_s=TIMEOUT_S)
            problems += _write(workplace, cell, found, runs=runs)
    return problems


def problems(workplace: Workplace, cells: Iterable[Cell]) -> list[str]:
    """Returns one line for each lock that is missing, made for something else, or nobody's."""
    found, known = [], set()
    for cell in cells:
        expected = cell.expectation("resolve")
        for runs in (False, True)[: 1 if cell.recipe is None else 2]:
            file = path(workplace, cell, runs=runs)
            known.add(file.name)
            why = _problem(workplace, cell, file, runs=runs)
            if why and not (expected and not runs and not file.exists()):
                found.append(f"{file}: {why}: `nox -s lock -- --cells '{cell.id}'` makes it")
    others = sorted(file for file in workplace.locks.glob("vllm-*.txt") if file.name not in known)
    return [*found, *(f"{file}: no cell of {workplace.matrix.path.name} has this lock" for file in others)]


def _problem(workplace: Workplace, cell: Cell, file: Path, *, runs: bool) -> str:
    if not file.exists():
        return "is not there"
    if file.read_text(encoding="utf-8").partition("\n")[0] != _about(cell, runs=runs):
        return f"was not made for this: expected {_about(cell, runs=runs)!r}"
    if not runs or cell.recipe is None:
        return ""
    locked = {name: version for _kind, name, version in packages(read(workplace, cell, runs=True))}
    asked = map(Requirement, itertools.chain(*cell.recipe.filled(cell)))
    for item in asked:
        version = locked.get(canonicalize_name(item.name))
        if version is None or not item.specifier.contains(version, prereleases=True):
            return f"has {item.name} {version or 'nowhere'} where the recipe asks for {item}"
    return ""


def _write(workplace: Workplace, cell: Cell, found: Resolution, *, runs: bool) -> list[str]:
    file = path(workplace, cell, runs=runs)
    if not found.pins:
        expected = cell.expectation("resolve")
        if not runs and not found.infrastructure and expected is not None:
            file.unlink(missing_ok=True)
            return []
        return [f"{file.name}: {found.explanation}"]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_head(cell, found, runs=runs) + pylock.text(found.packages), encoding="utf-8")
    return []


def _head(cell: Cell, found: Resolution, *, runs: bool) -> str:
    made = f"nox -s lock -- --cells '{cell.id}'"
    return f"{_about(cell, runs=runs)}\n# Made by: {made}\n# {pylock.coverage(found.packages)}.\n"


def _about(cell: Cell, *, runs: bool) -> str:
    """Returns what a lock is made for, as its first line says it."""
    what = f"trl[vllm]=={cell.trl} with vllm=={cell.vllm}, as declared"
    cut = cell.exclude_newer
    if runs and cell.recipe is not None:
        what = f"{cell.id} by the recipe {cell.recipe.name!r} of matrix.toml"
        cut = cell.recipe.exclude_newer or cut
    return f"# {what}; Python {cell.python}; nothing newer than {cut}."
