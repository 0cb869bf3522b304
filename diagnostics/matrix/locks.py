"""Read, check and write the committed lock files: the exact package versions of each cell, with hashes.

A cell has up to two locks: one of its declared environment, and (`runnable`) one of the environment that its recipe
builds for a machine without a GPU. `refresh_locks` resolves them with uv. The digests ignore comments and hashes.
"""

import hashlib
import itertools
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from diagnostics.fixes import quote_command
from diagnostics.matrix import resolve
from diagnostics.matrix.cells import Cell
from diagnostics.matrix.context import Context
from diagnostics.safe_io import write_atomically

TIMEOUT_S = 300.0


def lock_path(context: Context, cell: Cell, *, runnable: bool) -> Path:
    """Return the path of the lock of a cell's declared environment, or with `runnable` of its runnable environment."""
    return context.locks / f"{cell.id}{'.cpu' if runnable else ''}.txt"


def read_pins(context: Context, cell: Cell, *, runnable: bool) -> tuple[str, ...]:
    """Return the pins of a committed lock; empty if there is none."""
    path = lock_path(context, cell, runnable=runnable)
    return pins_of(path.read_text(encoding="utf-8")) if path.exists() else ()


def pins_of(text: str) -> tuple[str, ...]:
    r"""Return the requirement lines of a lock, without comments and hashes, sorted.

    The digest of a lock is computed from these lines, because a file that is added to a release changes no version.

    >>> pins_of("# made by uv\nb==2\na==1  # via b\n")
    ('a==1', 'b==2')
    >>> pins_of("a==1 \\\n    --hash=sha256:00 \\\n    --hash=sha256:01\nb==2 --hash=sha256:02\n")
    ('a==1', 'b==2')
    """
    lines = (line.partition(" #")[0].partition(" --hash=")[0].strip() for line in _requirement_lines(text))
    return tuple(sorted(line for line in lines if line))


def unhashed_pins(text: str) -> list[str]:
    r"""Return the pins of a lock that have no hash, such as packages from a folder of wheels.

    >>> unhashed_pins("# a lock\na==1 \\\n    --hash=sha256:00\nb==2\n")
    ['b==2']
    """
    return [line for line in _requirement_lines(text) if line.strip() and " --hash=" not in line]


def _requirement_lines(text: str) -> list[str]:
    joined = text.replace("\\\n", " ")
    return [line for line in joined.splitlines() if not line.lstrip().startswith("#")]


def pins_digest(pins: Iterable[str]) -> str:
    """Return the digest of pins; 'none' if there are none."""
    text = "\n".join(pins)
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else "none"


def environment_digest(context: Context, cell: Cell) -> str:
    """Return the digest of the contents of the cell's environment: its lock and the recipe's additions."""
    pins = read_pins(context, cell, runnable=True)
    return pins_digest((*pins, *(cell.recipe.additions(cell) if pins and cell.recipe else ())))


def refresh_locks(context: Context, cells: Iterable[Cell]) -> list[str]:
    """Resolve and write the locks of these cells; return one line for each lock that could not be made.

    If the declared requirements have no solution, and the cell does not expect `resolve` to pass, the lock is removed.
    """
    problems = []
    for cell, runnable in _each_lock(cells):
        context.show_status(f"{cell.id}: resolving the {'runnable' if runnable else 'declared'} environment")
        solve = resolve.resolve_runnable if runnable else resolve.resolve_declared
        problems += _write_lock(context, cell, solve(context, cell, timeout_s=TIMEOUT_S), runnable=runnable)
    return problems


def check_locks(context: Context, cells: Iterable[Cell]) -> list[str]:
    """Return one line for each lock that is missing, does not fit its cell and recipe, or has no cell.

    The lock of a declared environment may be missing if the cell expects another result of `resolve` than a pass.
    """
    cells = list(cells)
    problems, known = [], set()
    for cell, runnable in _each_lock(cells):
        path = lock_path(context, cell, runnable=runnable)
        known.add(path.name)
        problem = _lock_problem(context, cell, path, runnable=runnable)
        unresolvable = "resolve" in cell.expect and not runnable and not path.exists()
        if problem and not unresolvable:
            problems.append(f"{path}: {problem}: `{_lock_command(cell)}` makes it")
    orphans = sorted(path for path in context.locks.glob("vllm-*.txt") if path.name not in known)
    return [*problems, *(f"{path}: no cell of {context.matrix.path.name} has this lock" for path in orphans)]


def _each_lock(cells: Iterable[Cell]) -> Iterable[tuple[Cell, bool]]:
    """Yield (cell, runnable) for each lock of the cells: the declared one and, with a recipe, the runnable one."""
    for cell in cells:
        yield cell, False
        if cell.recipe is not None:
            yield cell, True


def _lock_problem(context: Context, cell: Cell, path: Path, *, runnable: bool) -> str:
    """Return the reason why a lock does not fit its cell and recipe; empty if it does."""
    if not path.exists():
        return "does not exist"
    if path.read_text(encoding="utf-8").partition("\n")[0] != _first_line(cell, runnable=runnable):
        return f"was made for something else: expected {_first_line(cell, runnable=runnable)!r}"
    if not runnable or cell.recipe is None:
        return ""
    facts = resolve.package_facts(read_pins(context, cell, runnable=True))
    locked = {name: version for _kind, name, version in facts}
    for item in map(Requirement, itertools.chain(*cell.recipe.requirements_for(cell))):
        version = locked.get(canonicalize_name(item.name))
        if version is None or not item.specifier.contains(version, prereleases=True):
            return f"has {item.name} {version or 'nowhere'} where the recipe requires {item}"
    return ""


def _write_lock(context: Context, cell: Cell, resolution: resolve.Resolution, *, runnable: bool) -> list[str]:
    """Write a resolved lock; return the problem if uv failed, or an expected solution is missing."""
    path = lock_path(context, cell, runnable=runnable)
    if resolution.packages:
        path.parent.mkdir(parents=True, exist_ok=True)
        head = f"{_first_line(cell, runnable=runnable)}\n# Made by: {_lock_command(cell)}\n"
        coverage = f"# {resolve.hash_coverage(resolution.packages)}.\n"
        write_atomically(path, head + coverage + resolve.lock_text(resolution.packages), mode=0o644)
        return []
    if not runnable and not resolution.infrastructure and "resolve" in cell.expect:
        path.unlink(missing_ok=True)
        return []
    return [f"{path.name}: {resolution.explanation}"]


def _first_line(cell: Cell, *, runnable: bool) -> str:
    """Return the lock's first line, which names its cell, Python and date cut."""
    contents = f"{cell.trainer}[vllm]=={cell.version} with vllm=={cell.vllm}, as declared"
    cut = cell.exclude_newer
    if runnable and cell.recipe is not None:
        contents = f"{cell.id} by the recipe {cell.recipe.name!r} of matrix.toml"
        cut = cell.recipe.exclude_newer or cut
    return f"# {contents}; Python {cell.python}; nothing newer than {cut}."


def _lock_command(cell: Cell) -> str:
    return quote_command(("nox", "-s", "lock", "--", "--cells", cell.id))
