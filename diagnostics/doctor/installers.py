"""Recognise the package manager of an environment by its files, and build its commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from diagnostics.collect import search_path
from diagnostics.collect.packages import Environment
from diagnostics.doctor.requirements import adjust_for_installed
from diagnostics.fixes import Install, Run, Uninstall, Words
from diagnostics.frameworks import PACKAGES

BEFORE = "before.txt"
REINSTALL = ("--force-reinstall", "--no-deps")
"""Options that restore a package which the installer considers installed."""
# A project's lock file, the installer that writes it, and the manifest.
PROJECTS = (
    ("pixi.lock", "pixi", "pixi.toml"),
    ("uv.lock", "uv project", "pyproject.toml"),
    ("poetry.lock", "poetry", "pyproject.toml"),
    ("pdm.lock", "pdm", "pyproject.toml"),
)


@dataclass(frozen=True)
class Installer:
    """The package manager of an environment.

    Attributes:
        name: Name of the installer: pip, uv, uv project, poetry, pdm, pixi or conda.
        known_by: Files by which the installer was recognised.
        prefix: Folder of the environment.
        project: Folder of the project whose lock defines the environment; empty if none does.
        has_pip: Whether pip is installed in the environment.
    """

    name: str
    known_by: tuple[str, ...]
    prefix: str
    project: str = ""
    has_pip: bool = True

    def install(self, requirements: Iterable[str], options: Words = ()) -> Install:
        """Return one command that installs all requirements."""
        return self.translate(Install(tuple(requirements), options=options))

    def uninstall(self, names: Iterable[str]) -> Uninstall:
        """Return one command that removes packages."""
        return Uninstall(tuple(names), self._command("uninstall"))

    def translate(self, action: Install) -> Install:
        """Return an installation as a command of this installer; only pip and uv accept installer options."""
        return replace(action, by=self._pip("install") if action.options else self._command("install"))

    def record(self) -> Run:
        """Return the command that records the installed packages."""
        if self.project:
            lock, manifest = self._files()
            return Run(("cp", lock, f"{lock}.before"), then=Run(("cp", manifest, f"{manifest}.before")))
        if self.name == "conda":
            return Run(("conda", "list", "-p", self.prefix, "--explicit"), into=BEFORE)
        return Run(self._pip("freeze"), into=BEFORE)

    def restore(self) -> Run:
        """Return the command that restores the recorded packages."""
        if self.project:
            lock, manifest = self._files()
            back = Run(("mv", f"{manifest}.before", manifest), then=Run(self._project_command("sync")))
            return Run(("mv", f"{lock}.before", lock), then=back)
        if self.name == "conda":
            return Run(("conda", "install", "-p", self.prefix, "--file", BEFORE))
        if self.name == "uv":
            return Run((*self._pip("sync"), BEFORE))
        return Run((*self._pip("install"), "-r", BEFORE))

    def _files(self) -> tuple[str, str]:
        """Return the project's lock and manifest."""
        lock, manifest = next((lock, file) for lock, name, file in PROJECTS if name == self.name)
        return f"{self.project}/{lock}", f"{self.project}/{manifest}"

    def _command(self, action: str) -> Words:
        """Return the command that installs or uninstalls, without the packages."""
        if self.project:
            return self._project_command({"install": "add", "uninstall": "remove"}[action])
        if self.name == "conda":
            return ("conda", {"uninstall": "remove"}.get(action, action), "-p", self.prefix)
        return self._pip(action)

    def _project_command(self, verb: str) -> Words:
        """Return the project manager's command for `add`, `remove` or `sync`."""
        if self.name == "pixi":
            words = ("install",) if verb == "sync" else (verb, "--pypi")
            return ("pixi", *words, "--manifest-path", f"{self.project}/pixi.toml")
        return {
            "uv project": ("uv", verb, "--project", self.project),
            "poetry": ("poetry", "-C", self.project, verb),
            "pdm": ("pdm", verb, "-p", self.project),
        }[self.name]

    def _pip(self, action: str) -> Words:
        if self.name in {"uv", "uv project"}:
            return ("uv", "pip", action, "--python", self.prefix)
        python = f"{self.prefix}/bin/python"
        return (python, "-m", "pip", action) if self.has_pip else ("pip", "--python", python, action)


def install(environment: Environment, *requirements: str, options: Words = ()) -> Install:
    """Return the command that installs requirements in an environment, adjusted so that other packages keep working."""
    return find_installer(environment).install(adjust_for_installed(environment, requirements), options)


def uninstall(environment: Environment, *names: str) -> Uninstall:
    """Return the command that removes packages from an environment."""
    return find_installer(environment).uninstall(names)


def find_installer(environment: Environment) -> Installer:
    """Recognise the installer by a project's lock, conda's records, INSTALLER files or pyvenv.cfg."""
    prefix = Path(environment.prefix)
    has_pip = "pip" in environment.packages
    by_file = _installer_files(environment)
    marks = tuple(f"INSTALLER of {number} packages: {name}" for name, number in by_file.most_common())
    project = _owning_project(prefix)
    if project is not None:
        name, mark, folder = project
        return Installer(name, (mark, *marks), environment.prefix, str(folder), has_pip)
    if (prefix / "conda-meta").is_dir():
        marks = ("conda-meta", *marks)
        if by_file["conda"] >= by_file.total() / 2:
            return Installer("conda", marks, environment.prefix, has_pip=has_pip)
    by_uv = "uv" in search_path.venv_settings(prefix)[0]
    common = by_file.most_common(1)[0][0] if by_file else ""
    name = "uv" if common == "uv" or (by_uv and (not has_pip or not common)) else "pip"
    return Installer(
        name, ("pyvenv.cfg names uv", *marks) if by_uv else marks, environment.prefix, has_pip=has_pip
    )


def _installer_files(environment: Environment) -> Counter[str]:
    """Count the INSTALLER files by their content: of the frameworks if installed, else of all packages."""
    chosen = [environment.packages[name] for name in PACKAGES if name in environment.packages]
    results: Counter[str] = Counter()
    for package in chosen or environment.packages.values():
        # Poetry adds its version to its name.
        word = package.installer.split(" ")[0].lower()
        results[word] += 1 if word else 0
    return +results


def _owning_project(prefix: Path) -> tuple[str, str, Path] | None:
    """Return the project that owns the environment: `.venv` next to a lock, or pixi's folder of environments."""
    places = [prefix.parent] if prefix.name == ".venv" else []
    if prefix.parent.name == "envs" and prefix.parent.parent.name == ".pixi":
        places.append(prefix.parent.parent.parent)
    for folder in places:
        for lock, name, _manifest in PROJECTS:
            if (folder / lock).is_file():
                return name, f"{lock} beside the environment", folder
    return None
