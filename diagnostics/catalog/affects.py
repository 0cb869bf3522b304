"""Does a known issue concern these releases? The one answer, for whoever asks.

The package that the issue is in decides; what is claimed of others tells where it comes about. A claim that says the
issue does not occur without that other package (`needed`) decides beside it. What nobody looked at, and what can't be
read, is neither yes nor no.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from diagnostics.catalog.releases import within

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from diagnostics.catalog.model import Affected, Issue

# It occurs there; it does not; nobody looked at that release; the release can't be read; no release is known.
CONCERNED, FREE, NOT_LOOKED, UNREADABLE, UNKNOWN = (
    "concerned",
    "free",
    "not looked at",
    "unreadable",
    "unknown",
)


@dataclass(frozen=True)
class Held:
    """A claim that holds a release at hand."""

    package: str
    release: str
    claim: Affected


@dataclass(frozen=True)
class Concern:
    """What is claimed of the releases at hand.

    Attributes:
        answer: CONCERNED, FREE, NOT_LOOKED, UNREADABLE or UNKNOWN.
        package: The one that decided.
        release: Its release at hand; empty where none is known.
        held: All claims that hold a release at hand, those of other packages too.
        looked_to: The newest release that was looked at, where that at hand is newer.
    """

    answer: str
    package: str
    release: str
    held: tuple[Held, ...]
    looked_to: str = ""

    @property
    def own(self) -> tuple[Affected, ...]:
        """The claims that hold the release that decided."""
        return tuple(each.claim for each in self.held if each.package == self.package)


def affects(issue: Issue, releases: Mapping[str, str]) -> Concern:
    """Says whether an issue concerns releases, by package; what is not named is not known."""
    package = subject(issue)
    answer, looked_to = of_package(claims_of(issue, package), releases.get(package))
    needed = {claim.package for claim in issue.affected if claim.needed and claim.package in releases}
    for other in sorted(needed - {package}) if answer in {CONCERNED, NOT_LOOKED} else ():
        also, beyond = of_package(claims_of(issue, other), releases[other])
        if also != CONCERNED:
            answer, looked_to, package = also, beyond, other
            break
    held = [
        Held(claim.package, releases[claim.package], claim)
        for claim in issue.affected
        if claim.package in releases and of_package([claim], releases[claim.package])[0] == CONCERNED
    ]
    return Concern(answer, package, releases.get(package, ""), tuple(held), looked_to)


def subject(issue: Issue) -> str:
    """The package that an issue is in: the first of its components that anything is claimed of."""
    claimed = [claim.package for claim in issue.affected if not claim.needed]
    return next((name for name in issue.components if name in claimed), claimed[0])


def claims_of(issue: Issue, package: str) -> list[Affected]:
    """What is claimed of one package."""
    return [claim for claim in issue.affected if claim.package == package]


def of_package(claims: Iterable[Affected], release: str | None) -> tuple[str, str]:
    """The answer of some claims about one package, and how far was looked where its release is newer.

    Single releases that were run say nothing of the others.
    """
    claims = list(claims)
    if release is None:
        return UNKNOWN, ""
    if any(release in claim.releases for claim in claims):
        return CONCERNED, ""
    ranges = [claim for claim in claims if claim.versions]
    try:
        Version(release)
    except InvalidVersion:
        return (UNREADABLE if ranges else NOT_LOOKED), ""
    inside = [claim for claim in ranges if within(release, claim.versions)]
    if any(not claim.looked_to or within(release, f"<={claim.looked_to}") for claim in inside):
        return CONCERNED, ""
    if inside:
        return NOT_LOOKED, max((claim.looked_to for claim in inside), key=Version)
    return (FREE if ranges else NOT_LOOKED), ""


def free_from(claims: Iterable[Affected]) -> str:
    """Where claims end, as a specifier of the releases after it; empty where no range has an end."""
    ends = [
        part.strip()[1:]
        for claim in claims
        for part in claim.versions.split(",")
        if part.strip().startswith("<")
    ]
    return f">={ends[0]}" if ends else ""
