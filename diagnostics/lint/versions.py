"""Choose the releases that a run is checked for: given by the user, required by its project, or installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata

from packaging.version import InvalidVersion, Version

from diagnostics import UserError
from diagnostics.lint.project_requirements import PACKAGES, Project
from diagnostics.versions import in_range


@dataclass(frozen=True)
class Versions:
    """Releases by package; a package that is not listed has an unknown release.

    Attributes:
        given: Packages whose release the user gave.
        copies: Frameworks that the run's project carries a copy of, and its folder.
        sources: Where the project names a release, one line each.
    """

    known: Mapping[str, Version] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    copies: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()

    @property
    def releases(self) -> dict[str, str]:
        """The known releases as text, as the catalog takes them."""
        return {package: str(version) for package, version in self.known.items()}

    def within(self, package: str, specifier: str) -> bool | None:
        """Return whether a package's release is in a range; None if the release is unknown.

        >>> Versions({"vllm": Version("0.8.5")}).within("vllm", "<0.11"), Versions().within("vllm", "<0.11")
        (True, None)
        """
        if not specifier:
            return True
        version = self.known.get(package)
        return None if version is None else in_range(version, specifier)

    def with_project(self, project: Project) -> Versions:
        """Return the versions with the project's releases in place of the installed ones."""
        known, sources = dict(self.known), []
        for name, (release, file) in project.pins.items():
            if name not in self.given:
                known[name] = release
                sources.append(f"{name} {release}: {file}")
        for name, (copied, folder) in project.copies.items():
            sources.append(
                f"the project has its own copy of {name}, which may differ from any release: {folder}"
            )
            if name not in self.given:
                known.pop(name, None)
                if copied is not None:
                    known[name] = copied
        copies = {name: folder for name, (_release, folder) in project.copies.items()}
        return Versions(known, self.given, copies, tuple(sources))


def collect_versions(given: Mapping[str, str | None], *, installed: bool = True) -> Versions:
    """Return the given versions, and the installed ones for the rest.

    Raises:
        UserError: A given version is none.
    """
    known: dict[str, Version] = {}
    for package, distributions in PACKAGES.items():
        text = given.get(package)
        if text:
            try:
                known[package] = Version(text)
            except InvalidVersion:
                raise UserError(f"--{package} {text}: expected a version, such as 0.8.5") from None
        elif installed:
            version = next((release for name in distributions if (release := installed_version(name))), None)
            if version is not None:
                known[package] = version
    return Versions(known, frozenset(package for package, text in given.items() if text))


def installed_version(distribution: str) -> Version | None:
    """Return the installed release of a distribution."""
    try:
        return Version(metadata.version(distribution))
    except (metadata.PackageNotFoundError, InvalidVersion, TypeError):
        return None
