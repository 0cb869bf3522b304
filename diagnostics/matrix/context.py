"""Provide the context of a matrix command: matrix file, store, uv, interpreters, and the environment of cell programs.

Programs in cells get a staged copy of our packages and an environment without the user's secrets, network settings and
home. `interpreter` can fetch a Python with uv. `without_local_paths` replaces local paths in a text, and removes
passwords in addresses.
"""

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from diagnostics import UserError
from diagnostics.matrix.cells import Cell, Matrix
from diagnostics.matrix.identity import SourceDigests
from diagnostics.matrix.store import Store
from diagnostics.process import Completed, run
from diagnostics.uv import find_uv, process_environment

# The project: the folder that holds diagnostics, grpo_core and repro.
ROOT = Path(__file__).resolve().parents[2]
# Our packages that run inside cells. They are copied, so that a cell imports no other package of ours.
CELL_PACKAGES = ("grpo_core", "repro")
_ISSUES = Path("diagnostics", "catalog", "issues")  # titles and records of the repros
# The variables that a program in a cell inherits; tokens, proxies, PYTHONPATH and settings of vLLM are not among them.
_INHERITED = (
    "PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS",
)  # fmt: skip
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


class InterpreterError(UserError):
    """Raised when a cell's Python is not on this machine and was not fetched."""


def platform_name() -> str:
    """Return this machine's platform, such as 'linux-x86_64'."""
    return f"{platform.system()}-{platform.machine()}".lower()


def without_local_paths(text: str, store: Path) -> str:
    """Return a text with names for the paths of store, project and home, and without USER:PASSWORD@ in addresses."""
    for path, name in ((store.resolve(), "<store>"), (ROOT, "<project>"), (Path.home(), "~")):
        text = text.replace(os.fspath(path), name)
    return re.sub(r"//[^/@\s:]+:[^/@\s]+@", "//", text)


@dataclass
class Context:
    """The machine, store and matrix file of one command."""

    matrix: Matrix
    store: Store
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    programs: Path = ROOT
    """The folder that holds grpo_core and repro."""
    show_status: Callable[[str], None] = lambda _text: None
    """Displays the current action."""
    _pythons: dict[str, tuple[Path, str]] = field(default_factory=dict)

    @property
    def locks(self) -> Path:
        """The folder of locks."""
        return self.matrix.path.parent / "locks"

    def folder(self, *parts: str) -> Path:
        """Return a folder below the store's, created if it does not exist; a link that leads out of it is refused."""
        path = self.store.folder.joinpath(*parts)
        if not path.resolve().is_relative_to(self.store.folder.resolve()):
            raise UserError(f"{path}: a link that leads out of the store")
        path.mkdir(parents=True, exist_ok=True)
        return path

    def empty_folder(self, *parts: str) -> Path:
        """Return a folder below the store's after removing what is in it; a link in its place is refused."""
        path = self.folder(*parts)
        if path.is_symlink():
            raise UserError(f"{path}: a link in place of a folder: remove it")
        shutil.rmtree(path)
        path.mkdir()
        return path

    @cached_property
    def uv(self) -> Path:
        """The uv executable."""
        return find_uv()

    def run_command(
        self, command: Sequence[str | Path], *, timeout_s: float, wheels: bool = True, **options: Any
    ) -> Completed:
        """Run uv or an interpreter to its end; a timeout gives exit code 124 and its reason.

        Args:
            command: Program and arguments.
            timeout_s: Seconds until the program is killed.
            wheels: Whether uv may use the machine's local folders of wheels; not when a *declared* environment is
                resolved, because users do not get local builds.
            options: Other arguments of `diagnostics.process.run`.
        """
        environ = process_environment(self.environ)
        if not wheels:
            environ.pop("UV_FIND_LINKS", None)
        done = run(command, timeout_s=timeout_s, env=environ, **options)
        if not done.timed_out:
            return done
        return replace(done, code=124, output="", errors=f"no result within {timeout_s:.0f} s")

    def interpreter(self, minor: str, *, fetch: bool = False) -> tuple[Path, str]:
        """Return the path and full version of a Python; a Python that was found is cached.

        Raises:
            InterpreterError: There is no such Python, and with `fetch`, uv could not fetch it either.
        """
        if minor not in self._pythons:
            path = self._find_python(minor)
            if path is None and fetch:
                self.show_status(f"fetching Python {minor}")
                self.run_command([self.uv, "python", "install", minor], timeout_s=600)
                path = self._find_python(minor)
            if path is None:
                raise InterpreterError(
                    f"no Python {minor} on this machine: `uv python install {minor}` fetches one"
                )
            program = "import platform; print(platform.python_version())"
            version = self.run_command([path, "-I", "-c", program], timeout_s=60).output.strip()
            self._pythons[minor] = (path, version)
        return self._pythons[minor]

    def _find_python(self, minor: str) -> Path | None:
        """Return a Python that uv finds, or one next to the Python that runs this; None if there is none."""
        existing_folder = next(folder for folder in self.store.folder.parents if folder.is_dir())
        arguments = ["python", "find", "--system", "--no-config", "--no-python-downloads", minor]
        result = self.run_command([self.uv, *arguments], timeout_s=60, cwd=existing_folder)
        if result.code == 0:
            return Path(result.output.strip())
        # uv does not look where this Python itself comes from, such as a folder of pyenv.
        neighbour = Path(sys.base_prefix, "bin", f"python{minor}")
        return neighbour if neighbour.is_file() else None

    @cached_property
    def stage(self) -> Path:
        """A folder for the imports of cells: copies of grpo_core, repro and the catalog's issues, made at first use."""
        target = self.empty_folder("stage")
        for name in CELL_PACKAGES:
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(self.programs / name, target / name, ignore=ignore)
        shutil.copytree(ROOT / _ISSUES, target / _ISSUES)
        return target

    @cached_property
    def sources(self) -> SourceDigests:
        """Digests of our source files as they are in this run."""
        project = dict.fromkeys(("diagnostics", "tests"), ROOT)
        return SourceDigests(project | dict.fromkeys(CELL_PACKAGES, self.programs))

    def cell_environ(self, cell: Cell) -> dict[str, str]:
        """Return all environment variables of a program in a cell: offline, without secrets, with its own home.

        It uses one OpenMP thread unless the user or the cell's recipe sets another number.
        """
        inherited = {name: self.environ[name] for name in _INHERITED if name in self.environ}
        home = self.folder("home")
        return {
            "OMP_NUM_THREADS": "1",
            **inherited,
            **_OFFLINE,
            "HOME": os.fspath(home),
            "XDG_CACHE_HOME": os.fspath(home / ".cache"),
            "PYTHONPATH": os.fspath(self.stage),
            "PYTHONNOUSERSITE": "1",
            "PYTHONUNBUFFERED": "1",
            **(cell.recipe.environment if cell.recipe else {}),
        }
