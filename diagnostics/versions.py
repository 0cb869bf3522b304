"""Parse and compare releases and version ranges, and decide whether a known issue affects installed releases.

A release or a range can be any text that a package, a lock or a user declares. Text that is no version, or is longer
than a real one, raises no error: `in_range` returns False for it, `may_allow` True, and `satisfiable` ignores such a
range. `parse_version` parses a release, `in_range` and `may_allow` test whether a range includes it, and `satisfiable`
whether ranges overlap. `affects` compares installed releases with an issue's claims. `CLASHES` lists releases that fail
together.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from diagnostics.catalog.model import Affected, Issue


class Clash(NamedTuple):
    """Releases of two packages that an installer accepts together and with which a run fails.

    Attributes:
        package: The package that is usually the one to change.
        versions: Its releases that fail.
        others: Its releases that do not fail.
        companion: The other package.
        companion_versions: Its releases with which `versions` fail.
        replacement: A requirement that replaces the companion if no other release of `package` can be installed.
        code: The known issue, or ''.
    """

    package: str
    versions: str
    others: str
    companion: str
    companion_versions: str
    replacement: str
    code: str

    def covers(self, releases: Mapping[str, str]) -> bool:
        """Return whether these releases, given by package, include both packages with releases that fail together."""
        ranges = {self.package: self.versions, self.companion: self.companion_versions}
        return all(in_range(releases.get(name, ""), versions) for name, versions in ranges.items())


CLASHES = (
    # Wheels of pyarrow from 24 on are built for NumPy 2.
    Clash("numpy", "<2", ">=2", "pyarrow", ">=24", "pyarrow<24", ""),
    Clash("transformers", ">=5.3", "<5.3", "trl", "<0.29", "trl>=0.29", "CMP003"),
    # vLLM 0.9 registers the model type aimv2, which is in transformers from 4.54 on.
    Clash("transformers", ">=4.54", "<4.54", "vllm", ">=0.9,<0.10", "vllm>=0.10", "CMP031"),
    Clash("transformers", ">=5", "<5", "vllm", ">=0.6,<0.12", "vllm>=0.12", "CMP017"),
)


@cache
def parse_version(text: str) -> Version | None:
    """Parse a release; None if the text is no release.

    >>> parse_version("0.8.5.post1"), parse_version("dev")
    (<Version('0.8.5.post1')>, None)
    """
    try:
        return Version(text) if len(text) <= 200 else None
    except InvalidVersion:
        return None


@cache
def parse_specifier(text: str) -> SpecifierSet | None:
    """Parse a version range such as `>=0.6,<0.11`; None if the text is no range. An empty text allows every release."""
    try:
        return SpecifierSet(text) if len(text) <= 2000 else None
    except InvalidSpecifier:
        return None


def is_release(text: str) -> bool:
    """Return whether a text can be parsed as a release."""
    return parse_version(text) is not None


def in_range(release: str | Version, versions: str | SpecifierSet, *, prereleases: bool = True) -> bool:
    """Return whether a release is in a version range; False if either is unreadable.

    >>> in_range("0.8.5.post1", ">=0.8,<0.9"), in_range("dev", ">=0.8"), in_range("0.9rc1", "<0.9")
    (True, False, False)
    """
    version = parse_version(release) if isinstance(release, str) else release
    allowed = parse_specifier(versions) if isinstance(versions, str) else versions
    if version is None or allowed is None:
        return False
    return allowed.contains(version, prereleases=prereleases)


def may_allow(versions: str, release: str) -> bool:
    """Return whether a release is in a version range; True if either is unreadable."""
    allowed, version = parse_specifier(versions), parse_version(release)
    return allowed is None or version is None or allowed.contains(version, prereleases=True)


def satisfiable(ranges: Iterable[str]) -> bool:
    """Return whether a version is in all ranges, by trying 0, the bounds, and the versions right after each bound.

    >>> satisfiable(["<0.9", ">=0.8.5"]), satisfiable(["==2.6.0", ">=2.7"]), satisfiable(["==2.6.*", ">=2.5"])
    (True, False, True)
    >>> satisfiable([">=4.52", "!=4.52.*"])
    True
    """
    ranges = list(ranges)
    bounds = {match.rstrip(".") for text in ranges for match in re.findall(r"\d[\w.!+]*", text)}
    public = {bound.partition("+")[0] for bound in bounds}
    following = {re.sub(r"\d{1,9}$", lambda last: str(int(last[0]) + 1), bound) for bound in public}
    candidates = filter(is_release, (*bounds, *(f"{bound}.0.1" for bound in public), *following, "0"))
    return not bounds or any(all(may_allow(text, version) for text in ranges) for version in candidates)


def newest(releases: Iterable[str]) -> str:
    """Return the newest of the texts that are releases; empty if none is."""
    return max(filter(is_release, releases), key=Version, default="")


def minor_line(release: str) -> tuple[int, int] | None:
    """Return major and minor number of a release, such as (0, 25); None if the text is no release."""
    version = parse_version(release)
    return None if version is None else (version.major, version.minor)


AFFECTED, NOT_AFFECTED, NOT_EXAMINED, UNREADABLE, UNKNOWN = (
    "affected", "not affected", "not examined", "unreadable", "unknown",
)  # fmt: skip
"""Answers of `affects`.

NOT_AFFECTED: the release is outside the claimed ranges. NOT_EXAMINED: the claims list only other single releases, or
the release is newer than the newest examined one of its range. UNREADABLE: the text is no release, and a claim has a
range. UNKNOWN: the package is not installed.
"""


@dataclass(frozen=True)
class MatchingClaim:
    """A claim of a known issue that covers an installed release."""

    package: str
    release: str
    claim: Affected


@dataclass(frozen=True)
class Applicability:
    """Whether a known issue affects the releases at hand.

    Attributes:
        answer: AFFECTED, NOT_AFFECTED, NOT_EXAMINED, UNREADABLE or UNKNOWN.
        package: The package that decided the answer.
        release: The installed release of this package; empty if unknown.
        matching: All claims that cover an installed release, of other packages too.
        examined_to: The newest examined release, if the installed release is newer.
    """

    answer: str
    package: str
    release: str
    matching: tuple[MatchingClaim, ...]
    examined_to: str = ""

    @property
    def deciding_claims(self) -> tuple[Affected, ...]:
        """The claims that cover the deciding release."""
        return tuple(item.claim for item in self.matching if item.package == self.package)


def affects(issue: Issue, releases: Mapping[str, str], framework: str = "") -> Applicability:
    """Return whether a known issue affects the installed releases, given by package.

    The package of the issue (`issue_package`) decides. If the issue also needs certain releases of other packages,
    those of them that are installed must be affected, too.
    """
    package = issue_package(issue, framework)
    answer, examined_to = check_claims(claims_of(issue, package), releases.get(package))
    needed = {claim.package for claim in issue.affected if claim.needed and claim.package in releases}
    if answer in {AFFECTED, NOT_EXAMINED}:
        for package_needed in sorted(needed - {package}):
            also, beyond = check_claims(claims_of(issue, package_needed), releases[package_needed])
            if also != AFFECTED:
                answer, examined_to, package = also, beyond, package_needed
                break
    matching = tuple(
        MatchingClaim(claim.package, releases[claim.package], claim)
        for claim in issue.affected
        if claim.package in releases and check_claims([claim], releases[claim.package])[0] == AFFECTED
    )
    return Applicability(answer, package, releases.get(package, ""), matching, examined_to)


def issue_package(issue: Issue, framework: str = "") -> str:
    """Return the package whose claims decide an issue: the framework, the first component, or that of the first claim.

    A framework or component counts only if a claim is about it.
    """
    claimed = [claim.package for claim in issue.affected if not claim.needed]
    if framework in claimed:
        return framework
    return next((name for name in issue.components if name in claimed), claimed[0])


def claims_of(issue: Issue, package: str) -> list[Affected]:
    """Return the claims about one package."""
    return [claim for claim in issue.affected if claim.package == package]


def check_claims(claims: Iterable[Affected], release: str | None) -> tuple[str, str]:
    """Check claims about one package; return the answer, and the newest examined release if the given one is newer.

    A claim may list single releases that were run; it says nothing about other releases.
    """
    claims = list(claims)
    if release is None:
        return UNKNOWN, ""
    if any(release in claim.releases for claim in claims):
        return AFFECTED, ""
    ranges = [claim for claim in claims if claim.versions]
    if not is_release(release):
        return (UNREADABLE if ranges else NOT_EXAMINED), ""
    inside = [claim for claim in ranges if in_range(release, claim.versions)]
    if any(not claim.examined_until or in_range(release, f"<={claim.examined_until}") for claim in inside):
        return AFFECTED, ""
    if inside:
        return NOT_EXAMINED, newest(claim.examined_until for claim in inside)
    return (NOT_AFFECTED if ranges else NOT_EXAMINED), ""
