"""What the metadata of installed packages and the findings ask of versions, and whether that can be had at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from diagnostics.collect.names import may_be_asked
from diagnostics.output.remedies import Advice, Explain, Install

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from diagnostics.collect.environment import Environment, Package
    from diagnostics.output.findings import Finding


@dataclass(frozen=True)
class Demand:
    """Somebody wants a package in a range of versions.

    Attributes:
        by: Who wants it: a package and its version, or a code.
        code: The code, where it is one.
        name: The package wanted, normalised.
        versions: A specifier, empty for any version.
        known_by: declared, static or executed.
    """

    by: str
    name: str
    versions: str
    known_by: str = "declared"
    code: str = ""

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
    """Tells whether a version can lie in all ranges, by trying each bound, what comes right after it, and the next.

    >>> satisfiable(["<0.9", ">=0.8.5"]), satisfiable(["==2.6.0", ">=2.7"]), satisfiable(["==2.6.*", ">=2.5"])
    (True, False, True)
    >>> satisfiable([">=4.52", "!=4.52.*"])
    True
    """
    every = list(specifiers)
    bounds = {match.rstrip(".") for text in every for match in re.findall(r"\d[\w.!+]*", text)}
    plain = {bound.partition("+")[0] for bound in bounds}
    tried = [*bounds, *(f"{bound}.0.1" for bound in plain), *map(_next, plain), "0"]
    return not bounds or any(
        all(allows(text, version) for text in every) for version in tried if _valid(version)
    )


def _next(version: str) -> str:
    """The version with a last number that is one more."""
    return re.sub(r"\d{1,9}$", lambda last: str(int(last[0]) + 1), version)


def _valid(version: str) -> bool:
    try:
        Version(version)
    except InvalidVersion:
        return False
    return True


def declared_by(environment: Environment, package: Package) -> Iterator[Demand]:
    """What an installed package asks for on this machine, without extras; TRL's window for vLLM with it."""
    for line in filter(may_be_asked, requirements_of(package)):
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


def of_install(code: str, action: Install, known_by: str) -> list[Demand]:
    """The requirements of an action that does nothing but install them; options are more than that.

    >>> [str(demand) for demand in of_install("CMP999", Install(("numpy<2",)), "static")]
    ['CMP999 wants numpy<2']
    """
    found = []
    for word in () if action.options else action.requirements:
        try:
            requirement = Requirement(word)
        except InvalidRequirement:
            return []
        name = canonicalize_name(requirement.name)
        found.append(Demand(code, name, str(requirement.specifier), known_by, code))
    return found


def of_finding(finding: Finding) -> list[Demand]:
    """The requirements of a finding's own remedy, if all that it does is to install some."""
    found = []
    for action in finding.remedy.actions if finding.remedy else ():
        if isinstance(action, Install):
            asked = of_install(finding.code, action, finding.known_by)
            if not asked:
                return []
            found += asked
        elif not isinstance(action, Advice | Explain):
            return []
    return found


def _applies(environment: Environment, requirement: Requirement) -> bool:
    if requirement.marker is None:
        return True
    release = environment.python.split(",")[0].strip()
    minor = ".".join(release.split(".")[:2])
    return requirement.marker.evaluate({"extra": "", "python_version": minor, "python_full_version": release})
