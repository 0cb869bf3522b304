"""What every part of a run works with: where things are, and how programs in cells are started."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics.matrix.build.paths import OURS, ROOT, STAGED
from diagnostics.matrix.build.uv import find_uv, uv_environment
from diagnostics.matrix.records.closure import Code
from diagnostics.matrix.records.identity import code_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from diagnostics.matrix.plan.cells import Cell, Matrix
    from diagnostics.matrix.records.store import Store

# All that a program in a cell inherits: no tokens, no proxies, no PYTHONPATH, no settings of a user's own
# vLLM.
_INHERITED = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
)
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


class InterpreterError(RuntimeError):
    """Raised when a cell's Python isn't on this machine and can't be fetched."""


def silent(_text: str) -> None:
    """Says nothing."""


@dataclass
class Workplace:
    """One machine, one store, one matrix file."""

    matrix: Matrix
    store: Store
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    programs: Path = ROOT
    """The folder that holds grpo_core and repro."""
    say: Callable[[str], None] = silent
    """Shows what is being done at the moment."""
    locks_aside: Path | None = None
    """A folder of locks for pairs that stand in no file; None for the committed ones."""
    running: set[subprocess.Popen[Any]] = field(default_factory=set)
    """Programs of several questions at work, so that an interrupted run can end them."""
    _pythons: dict[str, tuple[Path, str]] = field(default_factory=dict)

    @property
    def locks(self) -> Path:
        """The folder of locks: the committed ones beside the matrix file, unless another is set."""
        return self.locks_aside or self.matrix.path.parent / "locks"

    def folder(self, *parts: str) -> Path:
        """Returns a folder below the store's, made if it isn't there."""
        path = self.store.folder.joinpath(*parts)
        path.mkdir(parents=True, exist_ok=True)
        return path

    @cached_property
    def uv(self) -> Path:
        """The uv executable."""
        return find_uv()

    @cached_property
    def uv_version(self) -> str:
        """What uv says of itself, as '0.13.8'."""
        done = subprocess.run([self.uv, "--version"], capture_output=True, text=True, check=False, timeout=30)
        return [*done.stdout.split(), "unknown", "unknown"][1]

    def uv_environ(self, *, wheels: bool = True) -> dict[str, str]:
        """Returns uv's environment: the user's, with pip's settings under uv's names.

        Args:
            wheels: whether the machine's folders of wheels count. Not where a *declared* environment is
            resolved:
                a local build is not what a user gets.
        """
        environment = {**self.environ, **uv_environment(self.environ), "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
        if not wheels:
            environment.pop("UV_FIND_LINKS", None)
        environment.pop("VIRTUAL_ENV", None)
        return environment

    def interpreter(self, minor: str, *, fetch: bool = False) -> tuple[Path, str]:
        """Returns the path and full version of a Python, asked of uv once.

        Raises:
            InterpreterError: when there is none, and none could be fetched.
        """
        if minor not in self._pythons:
            path = self._find_python(minor)
            if path is None and fetch:
                self.say(f"fetching Python {minor}")
                subprocess.run(
                    [self.uv, "python", "install", minor],
                    env=self.uv_environ(),
                    capture_output=True,
                    check=False,
                    timeout=600,
                )
                path = self._find_python(minor)
            if path is None:
                raise InterpreterError(
                    f"no Python {minor} on this machine: `uv python install {minor}` fetches one"
                )
            done = subprocess.run(
                [path, "-c", "import platform; print(platform.python_version())"],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            self._pythons[minor] = (path, done.stdout.strip())
        return self._pythons[minor]

    def _find_python(self, minor: str) -> Path | None:
        done = subprocess.run(
            [self.uv, "python", "find", "--system", "--no-config", "--no-python-downloads", minor],
            env=self.uv_environ(),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd=next(folder for folder in self.store.folder.parents if folder.is_dir()),
        )
        return Path(done.stdout.strip()) if done.returncode == 0 else None

    @cached_property
    def code(self) -> Code:
        """Our own code as it is in this run, of which each answer rests on a part."""
        return Code({name: self.programs if name in STAGED else ROOT for name in (*STAGED, *OURS)})

    @cached_property
    def _staged(self) -> str:
        return code_digest(self.programs, STAGED)

    def stage(self) -> Path:
        """Returns a folder that holds copies of grpo_core and repro as they are now."""
        target = self.store.folder / "stage" / self._staged
        if not target.exists():
            for old in self.folder("stage").iterdir():
                shutil.rmtree(old, ignore_errors=True)
            aside = target.with_name(target.name + ".part")
            for name in STAGED:
                shutil.copytree(
                    self.programs / name, aside / name, ignore=shutil.ignore_patterns("__pycache__")
                )
            aside.rename(target)
        return target

    def cell_environ(self, cell: Cell | None) -> dict[str, str]:
        """Returns all variables of a program in a cell (or beside none): scrubbed, offline, with a home of its own."""
        kept = {name: self.environ[name] for name in _INHERITED if name in self.environ}
        home = self.folder("home")
        ours = {
            "HOME": os.fspath(home),
            "XDG_CACHE_HOME": os.fspath(home / ".cache"),
            "PYTHONPATH": os.fspath(self.stage()),
            "PYTHONNOUSERSITE": "1",
            "PYTHONUNBUFFERED": "1",
        }
        return {
            "OMP_NUM_THREADS": "1",
            **kept,
            **_OFFLINE,
            **ours,
            **dict(cell.recipe.environment if cell and cell.recipe else ()),
        }
