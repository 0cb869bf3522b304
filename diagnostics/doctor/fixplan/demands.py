"""What the metadata of installed packages and the findings ask of versions, and whether that can be had at once."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from diagnostics.facts.environment import Environment, Package
    from diagnostics.report.findings import Finding

# A mitigation that is nothing but an installation: its requirements can join one command.
_INSTALL = re.compile(
    r"(?:python -m )?pip install ((?:(?:'[a-z0-9-]+[<>=!][^']*'|[a-z0-9-]+==[\w.]+) ?)+)", re.ASCII
)

_COMMAND = re.compile(r"(?:\S+ -m pip|uv pip|pip) install (?:--python \S+ )?(.+)")


@dataclass(frozen=True)
class Demand:
    """Somebody wants a package in a range of versions.

    Attributes:
        by: Who wants it: a package and its version, or a code.
        name: The package wanted, normalised.
        versions: A specifier, empty for any version.
        known_by: declared, static or executed.
    """

    by: str
    name: str
    versions: str
    known_by: str = "declared"

    def met(self, version: str | None) -> bool:
        """Tells whether a version is one of those wanted."""
        return version is not None and allows(self.versions, version)

    def __str__(self) -> str:
        return f"{self.by} wants {self.name}{self.versions}"


def allows(specifier: str, version: str) -> bool:
    """Tells whether a range holds a version; what can't be read forbids nothing."""
    try:
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True


def satisfiable(specifiers: Iterable[str]) -> bool:
    """Tells whether a version can lie in all ranges, by trying each bound and what comes right after it.

    >>> satisfiable(["<0.9", ">=0.8.5"]), satisfiable(["==2.6.0", ">=2.7"])
    (True, False)
    """
    every = list(specifiers)
    bounds = {match for text in every for match in re.findall(r"\d[\w.!+]*", text)}
    tried = [candidate for bound in bounds for candidate in (bound, f"{bound.partition('+')[0]}.0.1", "0")]
    return not bounds or any(
        all(allows(text, version) for text in every) for version in tried if _valid(version)
    )


def _valid(version: str) -> bool:
    try:
        Version(version)
    except InvalidVersion:
        return False
    return True


def declared_by(environment: Environment, package: Package) -> Iterator[Demand]:
    """What an installed package asks for on this machine, without extras; TRL's window for vLLM with it."""
    for line in requirements_of(package):
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        name = canonicalize_name(requirement.name)
        window = package.name == "trl" and name == "vllm" and str(requirement.specifier)
        if window or _applies(environment, requirement):
            yield Demand(f"{package.name} {package.version}", name, str(requirement.specifier))


def requirements_of(package: Package) -> tuple[str, ...]:
    """The requirements in a package's metadata; those of few packages are read beforehand."""
    if package.requires:
        return package.requires
    try:
        return tuple(PathDistribution(Path(package.place)).requires or ())
    except Exception:  # noqa: BLE001 - metadata is somebody else's file and can be broken in any way
        return ()


def on(environment: Environment, names: Iterable[str]) -> list[Demand]:
    """What all installed packages ask of some names."""
    wanted = set(names)
    return [
        demand
        for package in environment.packages.values()
        for demand in declared_by(environment, package)
        if demand.name in wanted and demand.versions
    ]


def of_edit(code: str, edit: str, known_by: str) -> list[Demand]:
    """The requirements of a mitigation that begins with nothing but their installation.

    >>> [str(demand) for demand in of_edit("CMP999", "pip install 'numpy<2'", "static")]
    ['CMP999 wants numpy<2']
    """
    match = _INSTALL.match(edit)
    if match is None or (match.end() < len(edit) and edit[match.end()] not in ",;"):
        return []
    found = []
    for word in match[1].split():
        try:
            requirement = Requirement(word.strip("'"))
        except InvalidRequirement:
            return []
        found.append(Demand(code, canonicalize_name(requirement.name), str(requirement.specifier), known_by))
    return found


def of_commands(finding: Finding) -> list[Demand]:
    """The requirements of a finding's commands, if all that they do is to install some.

    An option such as --force-reinstall is more than that.
    """
    commands = finding.remedy.commands if finding.remedy else ()
    lines = [line for line in commands if not line.startswith("python -m diagnostics")]
    found = []
    for line in lines:
        match = _COMMAND.fullmatch(line)
        words = shlex.split(match[1], comments=True) if match else ["-"]
        for word in words:
            try:
                requirement = Requirement(word)
            except InvalidRequirement:
                return []
            name = canonicalize_name(requirement.name)
            found.append(Demand(finding.code, name, str(requirement.specifier), finding.known_by))
    return found


def _applies(environment: Environment, requirement: Requirement) -> bool:
    if requirement.marker is None:
        return True
    release = environment.python.split(",")[0].strip()
    minor = ".".join(release.split(".")[:2])
    return requirement.marker.evaluate({"extra": "", "python_version": minor, "python_full_version": release})
