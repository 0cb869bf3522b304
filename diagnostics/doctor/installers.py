"""Recognise the package manager of an environment by its files, and build its commands, which are never run here.

The commands install and remove packages, record the installed packages, and restore them. `find_installer` returns the
`Installer` of an environment; `install` and `uninstall` return its commands.
"""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

from diagnostics.collect import search_path
from diagnostics.collect.python_environment import Environment
from diagnostics.doctor.requirements import adjust_for_installed
from diagnostics.fixes import Install, Run, Uninstall, python_command, uv_pip
from diagnostics.frameworks import PACKAGES

_RECORD = "before{}.txt"
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
        python: The environment's Python release.
    """

    name: str
    marks: tuple[str, ...]
    prefix: str
    project: str = ""
    has_pip: bool = True
    python: str = ""

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
            lock, manifest = (Run(("cp", file, kept)) for file, kept in self._kept_files())
            return replace(lock, then=manifest)
        words = ("conda", "list", "-p", self.prefix, "--explicit")
        return Run(words if self.name == "conda" else self._pip("freeze"), into=free_places(_RECORD)[0])

    def restore(self) -> Run:
        """Return the command that restores the recorded packages."""
        if self.project:
            lock, manifest = (Run(("mv", kept, file)) for file, kept in self._kept_files())
            return replace(lock, then=replace(manifest, then=Run(self._project_command("sync"))))
        options = {"conda": ("--file",), "uv": ()}.get(self.name, ("-r",))
        action = "sync" if self.name == "uv" else "install"
        return Run((*self._command(action), *options, *free_places(_RECORD)))

    def _kept_files(self) -> Iterable[tuple[str, str]]:
        """Return the project's lock and manifest, each with the place of its copy."""
        files = PROJECTS[self.name][:2]
        copies = free_places(*(f"before{{}}-{file}" for file in files))
        return zip((f"{self.project}/{file}" for file in files), copies, strict=True)

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
            return uv_pip(action, "--python", self.prefix)
        python = f"{self.prefix}/bin/python"
        if self.has_pip:
            return python_command(python, self.python, "-m", "pip", action)
        return ("pip", "--python", python, action)


def free_places(*names: str) -> list[str]:
    """Return paths in the home folder at which nothing lies, with one number for `{}` in all names.

    A repository or an environment can put links into its own folders, through which a printed command would write.
    """
    home = os.path.expanduser("~")  # noqa: PTH111 - as in `fixes`
    suffixes = chain([""], map("-{}".format, count(2)))
    tries = ([f"{home}/{name.replace('{}', suffix)}" for name in names] for suffix in suffixes)
    return next(places for places in tries if not any(map(os.path.lexists, places)))


def move_commands(places: Iterable[str], folder: str) -> list[tuple[str, ...]]:
    """Return the commands that move files or folders into a new folder, each to a name of its own.

    Names that differ only in case get numbers, too, because some file systems do not tell them apart.
    """
    taken: set[str] = set()
    commands: list[tuple[str, ...]] = []
    for place in dict.fromkeys(places):
        name = place.rstrip("/").rpartition("/")[2]
        names = chain([name], (f"{name}-{number}" for number in count(2)))
        target = next(candidate for candidate in names if candidate.casefold() not in taken)
        taken.add(target.casefold())
        commands.append(("mv", place, f"{folder}/{target}"))
    return commands


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
    installer = Installer("pip", marks, environment.prefix, has_pip=has_pip, python=environment.python)
    folder, name = _owning_project(prefix)
    if name:
        marks = (f"{PROJECTS[name][0]} beside the environment", *marks)
        return replace(installer, name=name, marks=marks, project=str(folder))
    if (prefix / "conda-meta").is_dir():
        marks = ("conda-meta", *marks)
        if by_file["conda"] >= by_file.total() / 2:
            return replace(installer, name="conda", marks=marks)
    by_uv = "uv" in search_path.venv_settings(prefix)[0]
    common = by_file.most_common(1)[0][0] if by_file else ""
    name = "uv" if common == "uv" or (by_uv and (not has_pip or not common)) else "pip"
    marks = ("pyvenv.cfg names uv", *marks) if by_uv else marks
    return replace(installer, name=name, marks=marks)


def _owning_project(prefix: Path) -> tuple[Path, str]:
    """Return the folder that a project of this environment would have, and its manager; "" without a lock.

    Only environments named `.venv`, or in `.pixi/envs`, belong to a project. Its files must be no links, because the
    manager would write through them.
    """
    folder = prefix.parent.parent.parent if prefix.match(".pixi/envs/*") else prefix.parent
    if prefix.name != ".venv" and not prefix.match(".pixi/envs/*"):
        return folder, ""
    for name, (lock, manifest, _) in PROJECTS.items():
        if (folder / lock).is_file() and not any((folder / file).is_symlink() for file in (lock, manifest)):
            return folder, name
    return folder, ""
