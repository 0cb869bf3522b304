"""Build the virtual environment of a cell from its committed lock with uv; remove other environments to make room.

`ensure_environment` builds an environment if it is missing or stale, and `make_room` removes others. A build ends by
writing a marker file. Without a marker, or with one for another lock or Python, the folder is removed and built again,
so an environment that a kill or a full disk left half-built is not used. A failed build raises `BuildError`, which
states whether the cell or something else is to blame.
"""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from diagnostics import UserError, safe_io
from diagnostics.matrix import libstdcxx, locks
from diagnostics.matrix.cells import Cell, Recipe
from diagnostics.matrix.context import Context, InterpreterError
from diagnostics.matrix.resolve import NETWORK_FAULT, cpu_torch
from diagnostics.output.redact import redact_tail, truncate
from diagnostics.uv import error_line

MARKER = "grpo-doctor.json"
GB = 1e9
# For each call of uv.
TIMEOUT_S = 1200.0


class BuildError(RuntimeError):
    """Raised when an environment cannot be built.

    Attributes:
        infrastructure: Whether the machine, the network, a missing lock or a changed file is to blame, not the cell.
        excerpt: The end of uv's messages.
    """

    def __init__(self, message: str, *, infrastructure: bool, excerpt: str = "") -> None:
        super().__init__(message)
        self.infrastructure = infrastructure
        self.excerpt = excerpt


class BuildMarker(Struct, frozen=True):
    """The contents of an environment's marker file."""

    lock: str
    """Digest of the lock and of the recipe's additions."""
    python: str
    """Full version of the interpreter."""
    packages: int
    seconds: float


def environment_folder(context: Context, cell: Cell) -> Path:
    """Return the folder of a cell's environment, whether or not it exists."""
    return context.folder("environments") / cell.id


def python_of(context: Context, cell: Cell) -> Path:
    """Return the interpreter of a cell's environment."""
    return environment_folder(context, cell) / "bin" / "python"


def existing_environment(context: Context, cell: Cell) -> BuildMarker | None:
    """Return the marker of the cell's environment if it is complete and current, and its Python is here; else None."""
    try:
        folder = environment_folder(context, cell)
        marker = safe_io.read_bytes(folder / MARKER, safe_io.CONFIG_LIMIT, inside=context.store.folder)
        built = msgspec.json.decode(marker, type=BuildMarker)
        _path, version = context.interpreter(cell.python)
    except (OSError, msgspec.DecodeError, InterpreterError):
        return None
    current = (locks.environment_digest(context, cell), version) == (built.lock, built.python)
    return built if current and python_of(context, cell).exists() else None


def ensure_environment(context: Context, cell: Cell) -> BuildMarker:
    """Return the marker of the cell's environment; build the environment first if it is not complete and current.

    Raises:
        BuildError: The environment could not be built; the error says whether the machine is to blame.
    """
    return existing_environment(context, cell) or _build(context, cell)


def _build(context: Context, cell: Cell) -> BuildMarker:
    """Build a cell's environment in place of an existing one; see `ensure_environment`."""
    recipe, pins = cell.recipe, locks.read_pins(context, cell, runnable=True)
    if recipe is None:
        raise BuildError(f"{cell.id} has no recipe in matrix.toml: nothing runs in it", infrastructure=False)
    if not pins:
        raise BuildError(
            f"no lock for {cell.id}: `nox -s lock -- --cells '{cell.id}'` makes it", infrastructure=True
        )
    target = environment_folder(context, cell)
    remove_environment(target)
    free = shutil.disk_usage(context.folder("environments")).free / GB
    if free < recipe.disk_gb:
        required = f"not built: {recipe.disk_gb:.1f} GB of free disk are required"
        raise BuildError(f"{required}, {free:.1f} GB are free at {target.parent}", infrastructure=True)
    try:
        interpreter, version = context.interpreter(cell.python, fetch=True)
    except InterpreterError as error:
        raise BuildError(str(error), infrastructure=True) from None
    started = time.monotonic()
    context.show_status(f"building its environment: {len(pins)} packages")
    _uv(context, ["venv", "--quiet", "--no-config", "--python", interpreter, target])
    _install_lock(context, cell, pins)
    _add_extras(context, cell, recipe)
    seconds = round(time.monotonic() - started, 1)
    built = BuildMarker(locks.environment_digest(context, cell), version, len(pins), seconds)
    safe_io.write_atomically(target / MARKER, msgspec.json.encode(built))
    return built


def _install_lock(context: Context, cell: Cell, pins: Sequence[str]) -> None:
    """Install the lines of the lock without following dependencies, which a recipe's `alone` relies on.

    A file with another hash than in the lock is refused. Packages from a folder of wheels have no hash, and are
    installed without verification.
    """
    lock = locks.lock_path(context, cell, runnable=True)
    torch = cpu_torch(context, cell) if any(pin.startswith("torch==") for pin in pins) else []
    unhashed = locks.unhashed_pins(lock.read_text(encoding="utf-8"))
    if unhashed:
        context.show_status(f"no hash for {', '.join(unhashed[:5])}: installed without verification")
    verify = "--verify-hashes" if unhashed else "--require-hashes"
    options = ["pip", "sync", "--quiet", "--no-config", verify, "--python", str(python_of(context, cell))]
    _uv(context, [*options, *torch, lock])


def _add_extras(context: Context, cell: Cell, recipe: Recipe) -> None:
    """Add what the recipe needs besides wheels: metadata of an empty distribution, and a stand-in for libstdc++.

    Raises:
        BuildError: The stand-in could not be built.
    """
    (packages,) = environment_folder(context, cell).glob("lib/python3*/site-packages")
    if recipe.named:
        name, _, version = recipe.named.format(**cell.versions).partition("==")
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: a name only; no code\n"
        folder = packages / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(metadata, encoding="utf-8")
    if recipe.glibcxx:
        try:
            libstdcxx.provide(packages, recipe.glibcxx)
        except libstdcxx.NotProvidedError as error:
            raise BuildError(str(error), infrastructure=True) from None


def _uv(context: Context, arguments: Sequence[str | Path]) -> None:
    """Run uv.

    Raises:
        BuildError: The command failed or took too long; the message is one line.
    """
    result = context.run_command([context.uv, *arguments], timeout_s=TIMEOUT_S)
    if result.code != 0:
        text = error_line(result.errors)
        # A file with another hash than the lock's says nothing about the cell that was locked.
        infrastructure = bool(NETWORK_FAULT.search(text)) or "hash mismatch" in text.lower()
        message = f"uv {arguments[0]} failed: {truncate(text, 300)}"
        excerpt = redact_tail(result.errors[-64_000:], 4000)
        raise BuildError(message, infrastructure=infrastructure, excerpt=excerpt)


def remove_environment(folder: Path) -> None:
    """Remove an environment if it exists, its marker first, so that a kill leaves none that looks complete.

    A link is refused before anything behind it is removed.
    """
    if folder.is_symlink():
        raise UserError(f"{folder}: a link in place of an environment: remove it")
    if folder.exists():
        (folder / MARKER).unlink(missing_ok=True)
        shutil.rmtree(folder)


def make_room(context: Context, cell: Cell) -> list[str]:
    """Remove other cells' environments, oldest first, until there is room to build this cell's; return their names.

    Nothing is removed for a cell without a recipe, or whose environment is built already.
    """
    if cell.recipe is None or existing_environment(context, cell):
        return []
    removed = []
    folders = [path for path in context.folder("environments").iterdir() if path.is_dir()]
    others = [path for path in folders if path.name != cell.id and not path.is_symlink()]
    for path in sorted(others, key=lambda path: path.stat().st_mtime):
        if shutil.disk_usage(path).free / GB >= cell.recipe.disk_gb:
            break
        remove_environment(path)
        removed.append(path.name)
    return removed
