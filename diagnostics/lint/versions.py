"""Choose the releases for which a run is checked: given by the user, required by its project, or installed.

`collect_versions` returns those given and, unless excluded, those installed. `Versions.with_project` puts the project's
in place of the installed ones; those given stay. If the version of a project's own copy cannot be read and the user
gave none, the release is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata

from packaging.version import Version

from diagnostics import UserError
from diagnostics.lint.project_requirements import PACKAGES, Project
from diagnostics.versions import in_range, parse_version


@dataclass(frozen=True)
class Versions:
    """The releases for which a run is checked.

    Attributes:
        known: Package -> release; the release of a package that is not listed is unknown.
        user_packages: Packages whose release the user gave.
        copies: Framework of which the run's project has its own copy -> folder of the copy.
        sources: Notes for the report: where the project names a release or has a copy.
    """

    known: Mapping[str, Version] = field(default_factory=dict)
    user_packages: frozenset[str] = frozenset()
    copies: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()

    @property
    def releases(self) -> dict[str, str]:
        """The known releases as text."""
        return {package: str(version) for package, version in self.known.items()}

    def within(self, package: str, specifier: str) -> bool | None:
        """Return whether a package's release is in a range; True for an empty range, None if the release is unknown.

        >>> Versions({"vllm": Version("0.8.5")}).within("vllm", "<0.11"), Versions().within("vllm", "<0.11")
        (True, None)
        """
        if not specifier:
            return True
        version = self.known.get(package)
        return None if version is None else in_range(version, specifier)

    def with_project(self, project: Project) -> Versions:
        """Return versions with the project's releases in place of installed ones; releases that the user gave stay.

        If the project has a copy of a framework whose release cannot be read, the release is unknown.
        """
        known, sources = dict(self.known), []
        for name, (release, file) in project.pins.items():
            if name not in self.user_packages:
                known[name] = release
                sources.append(f"{name} {release}: {file}")
        for name, (copied, folder) in project.copies.items():
            sources.append(
                f"the project has its own copy of {name}, which may differ from any release: {folder}"
            )
            if name not in self.user_packages:
                known.pop(name, None)
                if copied is not None:
                    known[name] = copied
        copies = {name: folder for name, (_release, folder) in project.copies.items()}
        return Versions(known, self.user_packages, copies, tuple(sources))


def collect_versions(given: Mapping[str, str | None], *, installed: bool = True) -> Versions:
    """Return the versions that the user gave and, unless `installed` is False, the installed ones of other packages.

    The installed PyTorch counts only if another package's installed version is used.

    Raises:
        UserError: A given text is no version.
    """
    known: dict[str, Version] = {}
    for package, distributions in PACKAGES.items():
        text = given.get(package)
        if text:
            release = parse_version(text)
            if release is None:
                raise UserError(f"--{package} {text}: expected a version, such as 0.8.5")
            known[package] = release
        elif installed:
            version = next(filter(None, map(installed_version, distributions)), None)
            if version is not None:
                known[package] = version
    # Without a framework, this environment is another than the run's, and so is its PyTorch.
    if installed and not any(name != "torch" and not given.get(name) for name in known):
        known.pop("torch", None)
    return Versions(known, frozenset(package for package, text in given.items() if text))


def installed_version(distribution: str) -> Version | None:
    """Return the installed release of a distribution; None if it is not installed or has no valid version."""
    try:
        return parse_version(metadata.version(distribution))
    except (metadata.PackageNotFoundError, TypeError):
        return None
