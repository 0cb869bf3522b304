"""Which installer made an environment, by the marks that it left, and its commands."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import given
from diagnostics.frameworks import PACKAGES
from diagnostics.output.remedies import Install, Run, Uninstall

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diagnostics.collect.environment import Environment
    from diagnostics.output.remedies import Words

BEFORE = "before.txt"
# A project's lock file, the installer that writes it, and the file that states what is wanted.
PROJECTS = (
    ("pixi.lock", "pixi", "pixi.toml"),
    ("uv.lock", "uv project", "pyproject.toml"),
    ("poetry.lock", "poetry", "pyproject.toml"),
    ("pdm.lock", "pdm", "pyproject.toml"),
)


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

    def install(self, requirements: Iterable[str]) -> Install:
        """One command for all of them."""
        return self.translated(Install(tuple(requirements)))

    def uninstall(self, names: Iterable[str]) -> Uninstall:
        """One command that removes packages."""
        return Uninstall(tuple(names), self._words("uninstall"))

    def translated(self, action: Install) -> Install:
        """An installation in the words of this installer; one with options is left in those that know them."""
        if action.options:
            return action
        conda = self.name in {"conda", "mamba"}
        requirements = tuple(item.replace("==", "=") if conda else item for item in action.requirements)
        return replace(action, requirements=requirements, by=self._words("install"))

    def record(self) -> Run:
        """The command that writes down what is there before anything changes."""
        if self.project:
            lock, manifest = self._files()
            return Run(("cp", lock, f"{lock}.before"), then=Run(("cp", manifest, f"{manifest}.before")))
        if self.name in {"conda", "mamba"}:
            return Run((self.name, "list", "-p", self.prefix, "--explicit"), into=BEFORE)
        return Run(self._pip("freeze"), into=BEFORE)

    def restore(self) -> Run:
        """The command that goes back to what `record` wrote down."""
        if self.project:
            lock, manifest = self._files()
            sync = {
                "uv project": ("uv", "sync", "--project", self.project),
                "poetry": ("poetry", "-C", self.project, "sync"),
                "pdm": ("pdm", "sync", "-p", self.project),
                "pixi": ("pixi", "install", "--manifest-path", manifest),
            }[self.name]
            back = Run(("mv", f"{manifest}.before", manifest), then=Run(sync))
            return Run(("mv", f"{lock}.before", lock), then=back)
        if self.name in {"conda", "mamba"}:
            return Run((self.name, "install", "-p", self.prefix, "--file", BEFORE))
        return Run((*self._pip("install"), "-r", BEFORE))

    def _files(self) -> tuple[str, str]:
        lock, manifest = next((lock, file) for lock, name, file in PROJECTS if name == self.name)
        return f"{self.project}/{lock}", f"{self.project}/{manifest}"

    def _words(self, action: str) -> Words:
        """The words before what is to be installed or uninstalled."""
        verb = {"install": "add", "uninstall": "remove"}[action]
        by_conda = (self.name, "install" if action == "install" else "remove", "-p", self.prefix)
        return {
            "uv project": ("uv", verb, "--project", self.project),
            "poetry": ("poetry", "-C", self.project, verb),
            "pdm": ("pdm", verb, "-p", self.project),
            "pixi": ("pixi", verb, "--pypi", "--manifest-path", f"{self.project}/pixi.toml"),
            "conda": by_conda,
            "mamba": by_conda,
        }.get(self.name) or self._pip(action)

    def _pip(self, action: str) -> Words:
        if self.name == "uv":
            return ("uv", "pip", action, "--python", self.prefix)
        python = f"{self.prefix}/bin/python"
        return (python, "-m", "pip", action) if self.has_pip else ("pip", "--python", python, action)


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
    chosen = [environment.packages[name] for name in PACKAGES if name in environment.packages]
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
        lines = given.text(prefix / "pyvenv.cfg", given.WORD).splitlines()
    except OSError:
        return False
    return any(line.partition("=")[0].strip() == "uv" for line in lines)


def _made_by_mamba(prefix: Path) -> bool:
    try:
        lines = given.text(prefix / "conda-meta" / "history", given.LIST).splitlines()
    except OSError:
        return False
    commands = [line for line in lines if line.startswith("# cmd:")]
    return bool(commands) and "mamba" in commands[-1]
