"""Recognise the package manager of an environment by its files, and build its commands, which are never run here.

The commands install and remove packages, record the installed packages, and restore them. `find_installer` returns the
`Installer` of an environment; `install` and `uninstall` return its commands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from diagnostics.collect import search_path
from diagnostics.collect.python_environment import Environment
from diagnostics.doctor.requirements import adjust_for_installed
from diagnostics.fixes import Install, Run, Uninstall
from diagnostics.frameworks import PACKAGES

RECORD_FILE = "before.txt"
REINSTALL = ("--force-reinstall", "--no-deps")
"""Options that install a package again although the installer considers it installed."""
# For each project manager: its lock file, its manifest, and its command.
PROJECTS = {
    "pixi": ("pixi.lock", "pixi.toml", "pixi VERB --manifest-path PROJECT/pixi.toml"),
    "uv project": ("uv.lock", "pyproject.toml", "uv VERB --project PROJECT"),
    "poetry": ("poetry.lock", "pyproject.toml", "poetry -C PROJECT VERB"),
    "pdm": ("pdm.lock", "pyproject.toml", "pdm VERB -p PROJECT"),
}
_PIXI_VERBS = {"add": "add --pypi", "remove": "remove --pypi", "sync": "install"}


@dataclass(frozen=True)
class Installer:
    """The package manager of an environment; its methods return commands and run none.

    Attributes:
        name: Name of the installer: pip, uv, uv project, poetry, pdm, pixi or conda.
        marks: Descriptions of the files by which the installer was recognised.
        prefix: Folder of the environment.
        project: Folder of the project whose lock defines the environment; empty if none does.
        has_pip: Whether pip is installed in the environment.
    """

    name: str
    marks: tuple[str, ...]
    prefix: str
    project: str = ""
    has_pip: bool = True

    def install(self, requirements: Iterable[str], options: tuple[str, ...] = ()) -> Install:
        """Return one command that installs all requirements."""
        return self.translate(Install(tuple(requirements), options=options))

    def uninstall(self, names: Iterable[str]) -> Uninstall:
        """Return one command that removes packages."""
        return Uninstall(tuple(names), self._command("uninstall"))

    def translate(self, action: Install) -> Install:
        """Return an installation as a command of this installer, or of pip or uv if it has options."""
        return replace(action, by=self._pip("install") if action.options else self._command("install"))

    def record(self) -> Run:
        """Return the command that writes a list of the packages, or copies the project's lock and manifest."""
        if self.project:
            lock, manifest = (f"{self.project}/{file}" for file in PROJECTS[self.name][:2])
            return Run(("cp", lock, f"{lock}.before"), then=Run(("cp", manifest, f"{manifest}.before")))
        if self.name == "conda":
            return Run(("conda", "list", "-p", self.prefix, "--explicit"), into=RECORD_FILE)
        return Run(self._pip("freeze"), into=RECORD_FILE)

    def restore(self) -> Run:
        """Return the command that restores the recorded packages."""
        if self.project:
            lock, manifest = (f"{self.project}/{file}" for file in PROJECTS[self.name][:2])
            back = Run(("mv", f"{manifest}.before", manifest), then=Run(self._project_command("sync")))
            return Run(("mv", f"{lock}.before", lock), then=back)
        if self.name == "conda":
            return Run(("conda", "install", "-p", self.prefix, "--file", RECORD_FILE))
        pip = self._pip("sync") if self.name == "uv" else (*self._pip("install"), "-r")
        return Run((*pip, RECORD_FILE))

    def _command(self, action: str) -> tuple[str, ...]:
        """Return the command that installs or uninstalls, without the packages."""
        if self.project:
            return self._project_command({"install": "add", "uninstall": "remove"}[action])
        if self.name == "conda":
            return ("conda", {"uninstall": "remove"}.get(action, action), "-p", self.prefix)
        return self._pip(action)

    def _project_command(self, verb: str) -> tuple[str, ...]:
        """Return the project manager's command for `add`, `remove` or `sync`."""
        words = PROJECTS[self.name][2].replace("VERB", _PIXI_VERBS[verb] if self.name == "pixi" else verb)
        return tuple(word.replace("PROJECT", self.project) for word in words.split())

    def _pip(self, action: str) -> tuple[str, ...]:
        if self.name in {"uv", "uv project"}:
            return ("uv", "pip", action, "--python", self.prefix)
        python = f"{self.prefix}/bin/python"
        return (python, "-m", "pip", action) if self.has_pip else ("pip", "--python", python, action)


def install(environment: Environment, *requirements: str, options: tuple[str, ...] = ()) -> Install:
    """Return the command that installs requirements in an environment, adjusted so that other packages keep working."""
    return find_installer(environment).install(adjust_for_installed(environment, requirements), options)


def uninstall(environment: Environment, *names: str) -> Uninstall:
    """Return the command that removes packages from an environment."""
    return find_installer(environment).uninstall(names)


def find_installer(environment: Environment) -> Installer:
    """Recognise the installer by a project's lock, conda's records, INSTALLER files or pyvenv.cfg; pip by default."""
    prefix = Path(environment.prefix)
    has_pip = "pip" in environment.packages
    # The names in INSTALLER files: those of the installed frameworks, or else of all packages.
    frameworks = [environment.packages[name] for name in PACKAGES if name in environment.packages]
    packages = frameworks or environment.packages.values()
    by_file = Counter(filter(None, (package.installer.lower() for package in packages)))
    marks = tuple(f"INSTALLER of {number} packages: {name}" for name, number in by_file.most_common())
    folder, name = _owning_project(prefix)
    if name:
        marks = (f"{PROJECTS[name][0]} beside the environment", *marks)
        return Installer(name, marks, environment.prefix, str(folder), has_pip)
    if (prefix / "conda-meta").is_dir():
        marks = ("conda-meta", *marks)
        if by_file["conda"] >= by_file.total() / 2:
            return Installer("conda", marks, environment.prefix, has_pip=has_pip)
    by_uv = "uv" in search_path.venv_settings(prefix)[0]
    common = by_file.most_common(1)[0][0] if by_file else ""
    name = "uv" if common == "uv" or (by_uv and (not has_pip or not common)) else "pip"
    marks = ("pyvenv.cfg names uv", *marks) if by_uv else marks
    return Installer(name, marks, environment.prefix, has_pip=has_pip)


def _owning_project(prefix: Path) -> tuple[Path, str]:
    """Return the folder that a project of this environment would have, and its manager; "" without a lock.

    Only environments named `.venv`, or in `.pixi/envs`, belong to a project.
    """
    folder = prefix.parent.parent.parent if prefix.match(".pixi/envs/*") else prefix.parent
    if prefix.name != ".venv" and not prefix.match(".pixi/envs/*"):
        return folder, ""
    return folder, next((name for name, (lock, *_) in PROJECTS.items() if (folder / lock).is_file()), "")
