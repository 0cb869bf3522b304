"""Known issues that can occur in the installed releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.catalog import model
from diagnostics.catalog.affects import CONCERNED, UNREADABLE, affects
from diagnostics.catalog.offers import remedy
from diagnostics.catalog.releases import within
from diagnostics.doctor.checks.registered import check
from diagnostics.frameworks import ENGINES, TRAINERS, configured_in
from diagnostics.output.findings import Evidence, Finding, NotJudged, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diagnostics.catalog.affects import Concern
    from diagnostics.catalog.model import Affected, Issue
    from diagnostics.collect.environment import Environment, Package

# Of vLLM's V0 scheduler alone; V1 is the default from 0.8 on, and V0 left with 0.11.
_V0_ALONE = {"SCH001", "SCH002"}
_V1_DEFAULT = ">=0.8,<0.11"
# Two releases that are each fine, and together surely not: the entry is by a setting, and the setting is the other one.
_TOGETHER = {"CMP003": (("trl", "<0.29"), ("transformers", ">=5.0.dev0"))}


def nothing_to_judge(environment: Environment) -> str:
    """Says that nothing is installed of which anything is known, or ""."""
    known = {*ENGINES, *TRAINERS}
    if known & set(environment.packages):
        return ""
    return f"none of {', '.join(sorted(known))} is installed in {environment.prefix}"


def not_judged(environment: Environment, issues: dict[str, Issue]) -> list[NotJudged]:
    """The packages of which nothing could be said, since their release is none."""
    releases = environment.releases
    concerns = [affects(issue, releases) for issue in _active(issues)]
    unread = sorted({f"{each.package} {each.release}" for each in concerns if each.answer == UNREADABLE})
    return [
        NotJudged(package, "its release can't be read", "install a release, or a build that says which it is")
        for package in unread
    ]


def _active(issues: dict[str, Issue]) -> Iterator[Issue]:
    return (issue for issue in issues.values() if issue.status == "active")


@check("known issues", skip=nothing_to_judge, not_judged=not_judged)
def known_issues(environment: Environment, issues: dict[str, Issue]) -> list[Finding]:
    """Every active issue that the installed releases are concerned by.

    A claim that nobody read in the source or ran, and that has no upper end, tells no release from another: on it alone
    every environment would be warned. Such issues are left to `triage`, which sees whether they happened.
    """
    found, releases = [], environment.releases
    for issue in _active(issues):
        concern = affects(issue, releases)
        if concern.answer == CONCERNED and any(map(_tells_releases_apart, concern.own)):
            found.append(_finding(environment, issue, concern))
    return found + _together(environment, issues)


def _together(environment: Environment, issues: dict[str, Issue]) -> list[Finding]:
    """Pairs of releases that a run died of."""
    found = []
    for code, ranges in _TOGETHER.items():
        there = [environment.packages.get(name) for name, _ in ranges]
        packages = [package for package in there if package is not None]
        held = [
            within(package.version, wanted) for package, (_, wanted) in zip(packages, ranges, strict=False)
        ]
        if len(packages) < len(ranges) or not all(held):
            continue
        issue = issues[code]
        executed = any(package.version in claim.releases for package in packages for claim in issue.affected)
        found.append(
            Finding(
                code=code,
                title=issue.title,
                severity=Severity.ERROR,
                certainty="established" if executed else "supported",
                known_by="executed" if executed else "static",
                detail=issue.cause,
                evidence=tuple(
                    Evidence(f"{one.name} {one.version} is installed", one.place) for one in packages
                ),
                remedy=remedy(
                    issue,
                    frameworks=(*configured_in(environment.packages), "vllm"),
                    releases=environment.releases,
                ),
                references=tuple(reference.ref for reference in issue.references),
            )
        )
    return found


def _only_by_v0(environment: Environment, issue: Issue) -> str:
    """Why an issue of the V0 engine is none by default here, or ""."""
    vllm = environment.vllm
    if issue.code not in _V0_ALONE or vllm is None or not within(vllm.version, _V1_DEFAULT):
        return ""
    return (
        ""
        if environment.variables.get("VLLM_USE_V1") == "0"
        else f"V1 is the default of vLLM {vllm.version} on CUDA"
    )


def _tells_releases_apart(claim: Affected) -> bool:
    bounded = bool(claim.releases) or any(mark in claim.versions for mark in ("<", "==", "~="))
    return bounded or claim.evidence != "declared"


def _finding(environment: Environment, issue: Issue, concern: Concern) -> Finding:
    hits = [(_package(environment, held.package), held.claim) for held in concern.held]
    best = max((claim.evidence for _, claim in hits), key=model.EVIDENCE.index)
    evidence = [
        Evidence(f"{package.name} {package.version} is installed", package.place) for package, _ in hits
    ]
    evidence += [Evidence(f"{claim.package}: {claim.evidence}", claim.source) for _, claim in hits]
    elsewhere = _only_by_v0(environment, issue)
    if elsewhere:
        evidence.append(
            Evidence(
                f"{elsewhere}; V0 runs where VLLM_USE_V1=0 is set, and, unless VLLM_USE_V1=1 is, where V1 lacks what "
                "is asked or is off by default (in some of these releases: other hardware than CUDA, an engine outside "
                "the main thread)",
                "VLLM_USE_V1",
            )
        )
    return Finding(
        code=issue.code,
        title=issue.title,
        severity=Severity.INFO if elsewhere else Severity.WARNING,
        # The versions say that it can happen; whether it does depends on what is run.
        certainty="supported",
        known_by=best,
        detail=f"Only with the V0 engine. {issue.cause}" if elsewhere else issue.cause,
        evidence=tuple(dict.fromkeys(evidence)),
        remedy=remedy(
            issue,
            frameworks=(*configured_in(environment.packages), "vllm"),
            releases=environment.releases,
        ),
        references=tuple(reference.ref for reference in issue.references),
    )


def _package(environment: Environment, name: str) -> Package:
    there = environment.vllm if name == "vllm" else None
    return there or environment.packages[name]
