"""Version constraints of installed packages and of findings, and whether one version can satisfy all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PathDistribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from diagnostics.collect.names import may_be_parsed
from diagnostics.collect.packages import Environment, Package
from diagnostics.doctor.requirements import applies, parse_requirement
from diagnostics.findings import Finding
from diagnostics.fixes import Advice, Explain, Install
from diagnostics.versions import is_release, parse_specifier, parse_version


@dataclass(frozen=True)
class Constraint:
    """A package that must be in a range of versions.

    Attributes:
        source: What requires it: a package and its version, or a code.
        name: The required package, normalised.
        versions: A version range, empty for any version.
        known_by: declared, static or executed.
        code: The code of the finding that requires it, if any.
    """

    source: str
    name: str
    versions: str
    known_by: str = "declared"
    code: str = ""

    def allows(self, version: str | None) -> bool:
        """Return whether a version satisfies the constraint."""
        return version is not None and allows(self.versions, version)

    def __str__(self) -> str:
        return f"{self.source} needs {self.name}{self.versions}"


def allows(versions: str, version: str) -> bool:
    """Return whether a range contains a version; an unreadable range or version forbids nothing."""
    specifier, parsed = parse_specifier(versions), parse_version(version)
    return specifier is None or parsed is None or specifier.contains(parsed, prereleases=True)


def satisfiable(ranges: Iterable[str]) -> bool:
    """Return whether a version can be in all ranges, by trying each bound and the versions right after it.

    >>> satisfiable(["<0.9", ">=0.8.5"]), satisfiable(["==2.6.0", ">=2.7"]), satisfiable(["==2.6.*", ">=2.5"])
    (True, False, True)
    >>> satisfiable([">=4.52", "!=4.52.*"])
    True
    """
    every = list(ranges)
    bounds = {match.rstrip(".") for text in every for match in re.findall(r"\d[\w.!+]*", text)}
    public = {bound.partition("+")[0] for bound in bounds}
    candidates = [*bounds, *(f"{bound}.0.1" for bound in public), *map(_next_version, public), "0"]
    return not bounds or any(
        all(allows(text, version) for text in every) for version in candidates if is_release(version)
    )


def _next_version(version: str) -> str:
    return re.sub(r"\d{1,9}$", lambda last: str(int(last[0]) + 1), version)


def declared_constraints(environment: Environment, package: Package) -> Iterator[Constraint]:
    """Yield what an installed package requires on this machine, without extras."""
    for requirement in _parsed(package):
        if applies(environment, requirement):
            name = canonicalize_name(requirement.name)
            yield Constraint(f"{package.name} {package.version}", name, str(requirement.specifier))


def _parsed(package: Package) -> Iterator[Requirement]:
    lines = package.requires
    if not lines:
        # Requirements of most packages are not read beforehand.
        try:
            lines = tuple(PathDistribution(Path(package.place)).requires or ())
        except Exception:  # noqa: BLE001 - another package's metadata can be broken in any way
            return
    for line in filter(may_be_parsed, lines):
        if requirement := parse_requirement(line):
            yield requirement


def constraints_on(environment: Environment, names: Iterable[str]) -> list[Constraint]:
    """Return the version ranges that all installed packages require of the named packages."""
    required = set(names)
    return [
        constraint
        for package in environment.packages.values()
        for constraint in declared_constraints(environment, package)
        if constraint.name in required and constraint.versions
    ]


def install_constraints(code: str, action: Install, known_by: str) -> list[Constraint]:
    """Return the requirements of an install action; none if it has options, which do more than install.

    >>> [str(each) for each in install_constraints("CMP999", Install(("numpy<2",)), "static")]
    ['CMP999 needs numpy<2']
    """
    parsed = [parse_requirement(word) for word in (() if action.options else action.requirements)]
    if None in parsed:
        return []
    return [
        Constraint(code, canonicalize_name(item.name), str(item.specifier), known_by, code)
        for item in parsed
        if item
    ]


def finding_constraints(finding: Finding) -> list[Constraint]:
    """Return the requirements of a finding's fix, if it only installs packages."""
    results = []
    for action in finding.remedy.actions if finding.remedy else ():
        if isinstance(action, Install):
            required = install_constraints(finding.code, action, finding.known_by)
            if not required:
                return []
            results += required
        elif not isinstance(action, Advice | Explain):
            return []
    return results
