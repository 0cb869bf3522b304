"""The environment that the releases of a sweep share: locked, built once, never holding the package itself."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from diagnostics.matrix.build import locks, pylock
from diagnostics.matrix.build.environments import BuildError, check_disk, cpu_torch, unhashed, uv
from diagnostics.matrix.build.paths import ROOT
from diagnostics.matrix.build.resolving import pins
from diagnostics.matrix.records.identity import text_digest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from diagnostics.matrix.build.pylock import Locked
    from diagnostics.matrix.build.workplace import Workplace
    from diagnostics.matrix.sweep.plan import Sweep

MARKER = "grpo-doctor.json"
NEEDED_GB = 4.0


def lock_path(workplace: Workplace, sweep: Sweep) -> Path:
    """Returns where the committed lock is."""
    return workplace.locks / f"sweep-{sweep.name}.txt"


def lock(workplace: Workplace, sweep: Sweep) -> None:
    """Resolves the requirements and writes the lock.

    Raises:
        BuildError: uv found no solution, or the index can't be asked.
    """
    found: dict[str, Locked] = {}
    alone = [*sweep.alone, *_pinned(sweep)]
    for lines, more in ((sweep.requirements, []), (alone, ["--no-deps"])):
        if lines:
            command = ["pip", "compile", "--quiet", "--no-config", "--no-header", "--no-annotate"]
            command += ["--format", "pylock.toml"]
            command += ["--python-version", sweep.python, *cpu_torch(workplace, sweep.python), *more, "-"]
            compiled = pylock.read(uv(workplace, command, given="\n".join(lines)))
            found |= {item.pin: item for item in compiled}
    packages = [item for item in found.values() if sweep.locks_itself or _name(item.pin) != sweep.package]
    lock_path(workplace, sweep).write_text(text_of(sweep, packages), encoding="utf-8")


def text_of(sweep: Sweep, packages: Sequence[Locked]) -> str:
    """Returns a lock as it is written: each package with the hashes of its files."""
    about = f"# What runs beside every release of {sweep.package}; Python {sweep.python}."
    made = f"# Made by: {sweep.command} --lock"
    return f"{about}\n{made}\n# {pylock.coverage(packages)}.\n{pylock.text(packages)}"


def _name(pin: str) -> str:
    return pin.partition("==")[0]


def _pinned(sweep: Sweep) -> list[str]:
    return list(pins((ROOT / sweep.pinned).read_text(encoding="utf-8"))) if sweep.pinned else []


def lock_digest(workplace: Workplace, sweep: Sweep) -> str:
    """Returns the digest of the committed lock; comments don't count.

    Raises:
        BuildError: there is none.
    """
    path = lock_path(workplace, sweep)
    if not path.exists():
        raise BuildError(
            f"no lock {path.name}: make it with {sweep.command} --lock",
            infrastructure=True,
        )
    return text_digest("\n".join(pins(path.read_text(encoding="utf-8"))))


def ensure(workplace: Workplace, sweep: Sweep) -> None:
    """Builds the environment unless it is there whole.

    Raises:
        BuildError: too little disk, no lock, or uv failed.
    """
    target, own = folder(workplace, sweep), python(workplace, sweep)
    marker, digest = target / MARKER, lock_digest(workplace, sweep)
    if marker.exists() and marker.read_text(encoding="utf-8") == digest and own.exists():
        return
    shutil.rmtree(target, ignore_errors=True)
    check_disk(workplace, NEEDED_GB)
    workplace.say(f"building the environment beside every release of {sweep.package}")
    interpreter, _version = workplace.interpreter(sweep.python, fetch=True)
    uv(workplace, ["venv", "--quiet", "--no-config", "--python", interpreter, target])
    bare = locks.bare(lock_path(workplace, sweep).read_text(encoding="utf-8"))
    if bare:
        workplace.say(unhashed(bare))
    checked = "--verify-hashes" if bare else "--require-hashes"
    arguments: list[str | Path] = ["pip", "sync", "--quiet", "--no-config", checked, "--python", own]
    uv(workplace, [*arguments, *cpu_torch(workplace, sweep.python), lock_path(workplace, sweep)])
    marker.write_text(digest, encoding="utf-8")


def folder(workplace: Workplace, sweep: Sweep) -> Path:
    """Returns where the environment is, or would be."""
    return workplace.store.folder / "environments" / f"sweep-{sweep.name}"


def python(workplace: Workplace, sweep: Sweep) -> Path:
    """Returns its interpreter."""
    return folder(workplace, sweep) / "bin" / "python"
