"""Builds the environment of a cell from its committed lock, and knows whether one is whole.

A build ends by writing a marker. Without it, or with one for another lock or Python, the folder is removed
and built again: an environment that a kill or a full disk left half-built is never used.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from diagnostics.collect.secrets import cut
from diagnostics.matrix.build import libstdcxx, locks
from diagnostics.matrix.build.resolving import NETWORK, explain
from diagnostics.matrix.build.uv import torch_arguments
from diagnostics.matrix.build.workplace import InterpreterError, Workplace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from diagnostics.matrix.plan.cells import Cell, Recipe

MARKER = "grpo-doctor.json"
GB = 1e9
TIMEOUT_S = 1200.0


class BuildError(RuntimeError):
    """Raised when an environment can't be built; `infrastructure` tells whether the machine is to blame."""

    def __init__(self, message: str, *, infrastructure: bool, excerpt: str = "") -> None:
        super().__init__(message)
        self.infrastructure = infrastructure
        self.excerpt = excerpt


@dataclass(frozen=True)
class Built:
    """What the marker of a whole environment says."""

    lock: str
    """Digest of the lock it was built from, and of what its recipe adds."""
    python: str
    """Full version of its interpreter."""
    packages: int
    seconds: float
    size_gb: float
    """Size of its files; those shared with uv's cache by hard links take no room twice."""


def folder(workplace: Workplace, cell: Cell) -> Path:
    """Returns where the environment of a cell is, or would be."""
    return workplace.store.folder / "environments" / cell.id


def python(environment: Path) -> Path:
    """Returns the interpreter of an environment."""
    return environment / "bin" / "python"


def existing(workplace: Workplace, cell: Cell) -> Built | None:
    """Returns what is known of the cell's environment, None unless it is whole and current."""
    try:
        built = Built(**json.loads((folder(workplace, cell) / MARKER).read_text(encoding="utf-8")))
        _path, version = workplace.interpreter(cell.python)
    except (OSError, ValueError, TypeError, InterpreterError):
        return None
    lock = locks.contents(workplace, cell)
    usable = python(folder(workplace, cell)).exists()
    return built if usable and (built.lock, built.python) == (lock, version) else None


def ensure(workplace: Workplace, cell: Cell, *, fresh: bool = False) -> Built:
    """Returns the cell's environment, built now if it isn't there whole.

    Raises:
        BuildError: with the reason, and whether it is the machine's.
    """
    found = None if fresh else existing(workplace, cell)
    return found or _build(workplace, cell)


def _build(workplace: Workplace, cell: Cell) -> Built:
    recipe = cell.recipe
    if recipe is None:
        raise BuildError(
            f"{cell.id} has no recipe: matrix.toml says nothing runs in it", infrastructure=False
        )
    pins = locks.read(workplace, cell, runs=True)
    if not pins:
        raise BuildError(
            f"no lock for {cell.id}: `nox -s lock -- --cells '{cell.id}'` makes it",
            infrastructure=True,
        )
    target = folder(workplace, cell)
    remove(workplace, cell)
    check_disk(workplace, recipe.disk_gb)
    try:
        interpreter, version = workplace.interpreter(cell.python, fetch=True)
    except InterpreterError as error:
        raise BuildError(str(error), infrastructure=True) from None
    started = time.monotonic()
    workplace.say(f"building its environment: {len(pins)} packages")
    workplace.folder("environments")
    uv(workplace, ["venv", "--quiet", "--no-config", "--python", interpreter, target])
    _sync(workplace, cell, pins)
    _add(workplace, cell, recipe)
    built = Built(
        locks.contents(workplace, cell),
        version,
        len(pins),
        round(time.monotonic() - started, 1),
        round(_size(target) / GB, 2),
    )
    aside = target / f"{MARKER}.part"
    aside.write_text(json.dumps(asdict(built)), encoding="utf-8")
    aside.replace(target / MARKER)
    return built


def _sync(workplace: Workplace, cell: Cell, pins: Sequence[str]) -> None:
    """Installs exactly the lines of the lock and follows no dependencies, which is what `alone` relies on.

    A file with another hash than the lock's is refused. Where part of a lock comes from a folder of wheels, that part
    has no hash, and the rest is verified.
    """
    torch = cpu_torch(workplace, cell.python) if any(pin.startswith("torch==") for pin in pins) else []
    bare = locks.bare(locks.path(workplace, cell, runs=True).read_text(encoding="utf-8"))
    checked = "--require-hashes" if not bare else "--verify-hashes"
    if bare:
        workplace.say(unhashed(bare))
    given: list[str | Path] = [*torch, locks.path(workplace, cell, runs=True)]
    into = python(folder(workplace, cell))
    uv(workplace, ["pip", "sync", "--quiet", "--no-config", checked, "--python", into, *given])


def unhashed(bare: Sequence[str]) -> str:
    """Says which packages no hash protects.

    >>> unhashed(["torch==2.13.0+cpu"])
    'no hash for torch==2.13.0+cpu: taken as the folder of wheels or the index gives it'
    """
    named = ", ".join(bare[:5]) + (f" and {len(bare) - 5} more" if len(bare) > 5 else "")
    return f"no hash for {named}: taken as the folder of wheels or the index gives it"


def _add(workplace: Workplace, cell: Cell, recipe: Recipe) -> None:
    """Adds what the recipe asks for besides wheels."""
    (packages,) = folder(workplace, cell).glob("lib/python3*/site-packages")
    if recipe.named:
        name, _, version = recipe.named.format(vllm=cell.vllm, trl=cell.trl).partition("==")
        about = packages / f"{name}-{version}.dist-info"
        about.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: a name only; no code\n"
        (about / "METADATA").write_text(text, encoding="utf-8")
    if recipe.glibcxx:
        try:
            libstdcxx.provide(packages, recipe.glibcxx)
        except libstdcxx.NotProvidedError as error:
            raise BuildError(str(error), infrastructure=True) from None


def remove(workplace: Workplace, cell: Cell) -> bool:
    """Removes the cell's environment; the marker goes first, so that a kill leaves none that looks whole."""
    target = folder(workplace, cell)
    if not target.exists():
        return False
    (target / MARKER).unlink(missing_ok=True)
    shutil.rmtree(target)
    return True


def cpu_torch(workplace: Workplace, python: str) -> list[str]:
    """Returns what uv is told so that torch comes in its build for CPUs.

    Args:
        workplace: Where.
        python: Minor release of the interpreter, as '3.11'.
    """
    major, minor = (int(part) for part in python.split("."))
    return torch_arguments(workplace.environ, python=(major, minor))


def check_disk(workplace: Workplace, needed_gb: float) -> None:
    """Looks whether there is room for an environment.

    Raises:
        BuildError: there isn't.
    """
    where = workplace.folder("environments")
    free = shutil.disk_usage(where).free / GB
    if free < needed_gb:
        raise BuildError(
            f"not built: {needed_gb:.1f} GB of free disk are asked for, {free:.1f} GB are free at {where}",
            infrastructure=True,
        )


def uv(workplace: Workplace, arguments: Sequence[str | Path], given: str | None = None) -> str:
    """Runs uv and returns what it printed.

    Args:
        workplace: Where.
        arguments: Of uv.
        given: Its standard input.

    Raises:
        BuildError: it failed or took too long; in one line.
    """
    try:
        done = subprocess.run(
            [workplace.uv, *arguments],
            env=workplace.uv_environ(),
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise BuildError(
            f"uv {arguments[0]} took longer than {TIMEOUT_S:.0f} s", infrastructure=True
        ) from None
    if done.returncode != 0:
        text = explain(done.stderr)
        raise BuildError(
            f"uv {arguments[0]} failed: {cut(text, 300)}",
            # Another file than the locked one says nothing about the cell that was locked.
            infrastructure=bool(NETWORK.search(text)) or "hash mismatch" in text.lower(),
            excerpt=done.stderr[-4000:],
        )
    return done.stdout


def _size(path: Path) -> int:
    return sum(item.lstat().st_size for item in path.rglob("*") if item.is_symlink() or item.is_file())


def make_room(workplace: Workplace, cell: Cell, needed_gb: float) -> list[str]:
    """Removes other cells' environments, oldest first, until there is room; returns their names."""
    removed = []
    others = [
        path for path in workplace.folder("environments").iterdir() if path.is_dir() and path.name != cell.id
    ]
    for path in sorted(others, key=lambda item: item.stat().st_mtime):
        if shutil.disk_usage(path).free / GB >= needed_gb:
            break
        (path / MARKER).unlink(missing_ok=True)
        shutil.rmtree(path)
        removed.append(path.name)
    return removed
