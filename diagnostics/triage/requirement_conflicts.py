"""Explain requirements that pip or uv reports as unmet or unsolvable, and find releases that satisfy them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from diagnostics.api_index import query
from diagnostics.api_index.packages import PACKAGES as INDEXED
from diagnostics.findings import Certainty, Evidence, Finding, Severity
from diagnostics.fixes import Fix, Install
from diagnostics.frameworks import PACKAGES
from diagnostics.logs.prefixes import parse_line
from diagnostics.triage.log_facts import LogFacts
from diagnostics.triage.verdict import Diagnosis
from diagnostics.versions import in_range

_CODE = "CMP904"
_NAME = r"[A-Za-z0-9][\w.-]{0,80}"
# Each operator is matched in one way only: two ways for each of forty take 2**40 steps.
_RANGE = r"(?:(?:[<>!~]=?|={1,3})[\w.*+-]{1,40}(?:(?:, ?| and )(?=[<>=!~]))?){0,40}"
_REQUIREMENT = rf"(?P<name>{_NAME}?)(?:\[[\w,.-]{{1,80}}\])? ?(?P<range>{_RANGE})"
_PATTERNS = (
    # pip, after an installation
    re.compile(
        rf"(?P<user>{_NAME})(?: (?P<version>\d\S{{0,60}}))? requires {_REQUIREMENT}(?:;[^,]{{1,200}})?,"
        r" (?:but you(?: have|'ll have) \S{1,80} (?P<found>\S{1,60}) which is incompatible|which is not installed)"
    ),
    # pip, without a solution
    re.compile(rf"\s+(?P<user>{_NAME}) (?P<version>\d\S{{0,60}}) depends on {_REQUIREMENT}$"),
    re.compile(rf"\s+The user requested {_REQUIREMENT}$"),
)
# uv writes several requirements into a line.
_UV = re.compile(rf"(?P<user>{_NAME})==(?P<version>\d[\w.+!-]{{0,60}}) depends on {_REQUIREMENT}(?=[\s,]|$)")
# What transformers' `require_version` and xformers print at an import, and how pip would print it.
_REWORDED = {
    re.compile(rf"^.*?({_NAME}?{_RANGE}) is required for a normal .*, but found (\S+?)==(\S+?)\.?$"): (
        r"transformers requires \1, but you have \2 \3 which is incompatible"
    ),
    re.compile(r"^\s+PyTorch (\d\S{1,60}) with CUDA \S+ \(you have (\d\S{0,60}?)\)"): (
        r"xformers requires torch==\1, but you have torch \2 which is incompatible"
    ),
}
_MAX_LINES, _MAX_EVIDENCE = 2000, 8
# Checks of a release against a specifier, which take about a microsecond each; known logs need some hundred.
_MAX_CHECKS = 200_000


@dataclass(frozen=True)
class StatedRequirement:
    """A requirement on a package, and where the log shows it.

    Attributes:
        user: The package and release that requires it; '' if the user requested it.
        found: The installed release; '' if there is none or it is unknown.
    """

    user: str
    name: str
    specifier: SpecifierSet
    found: str
    evidence: Evidence

    @property
    def is_unmet(self) -> bool:
        """Whether the log reports that the installed packages do not satisfy it."""
        return bool(self.found) or " requires " in self.evidence.text

    def __str__(self) -> str:
        text = f"{self.user or 'the command'} requires {self.name}{self.specifier}"
        return f"{text}, found {self.found}" if self.found else text


def explain_conflicts(verdict: Diagnosis) -> Iterator[Finding]:
    """Yield a finding for the requirements that the logs report as not met or not solvable."""
    requirements = list(
        dict.fromkeys(requirement for log in verdict.logs for requirement in _read_requirements(log))
    )
    # Of those that pip lists after an installation, the ones of the training stack matter.
    requirements = [item for item in requirements if not item.is_unmet or _is_of_stack(item)] or requirements
    by_name: dict[str, list[StatedRequirement]] = {}
    for requirement in requirements:
        by_name.setdefault(requirement.name, []).append(requirement)
    # Without an installed release, only two requirements on one package are a conflict.
    conflicts = [items for items in by_name.values() if len(items) > 1 or items[0].is_unmet]
    if not conflicts:
        return
    first = conflicts[0][:1] if conflicts[0][0].is_unmet else conflicts[0][:2]
    more = sum(map(len, conflicts)) - len(first)
    title = "; ".join(map(str, first)) + (f"; and {more} more." if more else ".")
    changes, steps, checks = [], [], 0
    for items in conflicts:
        solution, more_checks = _solve(items, _MAX_CHECKS - checks)
        checks += more_checks
        if solution:
            changes.append(solution)
        elif solution is None:
            steps.append(f"Not searched for a release, because of too many requirements: {items[0].name}.")
        else:
            steps.append(f"No release satisfies all: {'; '.join(map(str, items))}.")
    fix = [f"Install releases that fit together: {' '.join(changes)}."] if changes else []
    if fix and len(conflicts) == 1 and first[0].found:
        user = first[0].user.partition(" ")[0] or "the program"
        fix.append(f"Or take a release of {user} for {first[0].name} {first[0].found}.")
    # The package index has no builds with a suffix such as +cu121.
    installable = tuple(change for change in changes if "+" not in change)
    yield Finding(
        _CODE,
        title,
        Severity.ERROR,
        Certainty.ESTABLISHED,
        "static",
        " ".join([title, *steps]),
        tuple(item.evidence for items in conflicts for item in items)[:_MAX_EVIDENCE],
        Fix.of(" ".join([*fix, *steps]), *([Install(installable)] if installable else [])),
    )


def _is_of_stack(requirement: StatedRequirement) -> bool:
    """Return whether a package of the training stack, or the user, requires it."""
    user = canonicalize_name(requirement.user.partition(" ")[0])
    return not user or user in PACKAGES or (user in INDEXED and bool(INDEXED[user].uses))


def _requires(user: str, name: str) -> bool:
    """Return whether the newest release of a package requires another one."""
    newest = query.Release(user, query.find_releases(user, "")[0])
    return bool(query.requirements_of(newest).get(canonicalize_name(name)))


def _solve(requirements: list[StatedRequirement], max_checks: int) -> tuple[str | None, int]:
    """Find a range that satisfies all requirements, or all but the user's own.

    Args:
        requirements: Requirements on one package.
        max_checks: Number of checks of a release against a specifier that may be made.

    Returns:
        The range, '' if there is none or None if `max_checks` are too few to know, and the number of checks.
    """
    name, checks = requirements[0].name, 0
    for items in (requirements, [requirement for requirement in requirements if requirement.user]):
        combined = SpecifierSet(
            ",".join({str(item.specifier): None for item in items if str(item.specifier)})
        )
        if not str(combined):
            return name, checks
        releases = query.find_releases(name, "")
        bounds = [item.version.removesuffix(".*") for item in combined]
        above = [f"{bound}.1" for bound in bounds if not releases and "+" not in bound]
        for version in (*releases, *bounds, *above):
            checks += len(combined)
            if checks > max_checks:
                return None, checks
            if combined.contains(version, prereleases=True):
                return (f"{name}{combined}" if items is requirements else f"{name}=={version}"), checks
    return "", checks


def _read_requirements(log: LogFacts) -> Iterator[StatedRequirement]:
    """Yield the requirements in the first lines of a log, as far as LogFacts stores them."""
    lines = log.lines_from(1, _MAX_LINES)
    for number, raw in enumerate(lines, 1):
        if any(words in raw for words in ("require", "depends on", "user requested", "you have")):
            text = pip_text = parse_line(raw).text.removeprefix("ERROR: ")
            for wording, replacement in _REWORDED.items():
                pip_text = wording.sub(replacement, pip_text)
            matches = [match for pattern in _PATTERNS if (match := pattern.match(pip_text))]
            for match in matches or _UV.finditer(text):
                groups = match.groupdict()
                user = " ".join(filter(None, (groups.get("user"), groups.get("version"))))
                # Other programs call that function of transformers, too, for packages that it does not require.
                if text != pip_text and user == "transformers" and not _requires(user, groups["name"]):
                    user = ""
                evidence = Evidence(text.strip(), f"{log.source}:{number}")
                try:
                    specifier = SpecifierSet(groups["range"].strip(" ,").replace(" and ", ","))
                except InvalidSpecifier:
                    continue
                name, found = canonicalize_name(groups["name"]), groups.get("found") or ""
                if not (found and in_range(found, specifier)):
                    yield StatedRequirement(user, name, specifier, found, evidence)
