"""Known issues that can occur in the installed releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.catalogue import model
from diagnostics.catalogue.releases import within
from diagnostics.frameworks import TRAINERS
from diagnostics.report.findings import Evidence, Finding, Severity
from diagnostics.report.remedies import SHOWN, UNTRIED, Explain, Offer, Remedy

if TYPE_CHECKING:
    from diagnostics.catalogue.model import Affected, Issue, Mitigation
    from diagnostics.facts.environment import Environment, Package


def known_issues(environment: Environment, issues: dict[str, Issue]) -> list[Finding]:
    """Every active issue whose first component is installed in an affected release.

    A claim that nobody read in the source or ran, and that has no upper end, tells no release from another: on it alone
    every environment would be warned. Such issues are left to `triage`, which sees whether they happened.
    """
    found = []
    for issue in issues.values():
        if issue.status != "active":
            continue
        hits = [(package, claim) for claim in issue.affected if (package := _hit(environment, claim))]
        first = [claim for package, claim in hits if package.name == _name(environment, issue.components[0])]
        if any(_tells_releases_apart(claim) for claim in first):
            found.append(_finding(environment, issue, hits))
    return found


def _tells_releases_apart(claim: Affected) -> bool:
    bounded = bool(claim.releases) or any(mark in claim.versions for mark in ("<", "==", "~="))
    return bounded or claim.evidence != "declared"


def _name(environment: Environment, component: str) -> str:
    return environment.vllm.name if component == "vllm" and environment.vllm else component


def _hit(environment: Environment, claim: Affected) -> Package | None:
    package = environment.packages.get(_name(environment, claim.package))
    if package is None:
        return None
    if claim.releases:
        return package if package.version in claim.releases else None
    return package if within(package.version, claim.versions) else None


def _finding(environment: Environment, issue: Issue, hits: list[tuple[Package, Affected]]) -> Finding:
    best = max((claim.evidence for _, claim in hits), key=model.EVIDENCE.index)
    evidence = [
        Evidence(f"{package.name} {package.version} is installed", package.place) for package, _ in hits
    ]
    evidence += [Evidence(f"{claim.package}: {claim.evidence}", claim.source) for _, claim in hits]
    return Finding(
        code=issue.code,
        title=issue.title,
        severity=Severity.WARNING,
        # The versions say that it can happen; whether it does depends on what is run.
        certainty="supported",
        known_by=best,
        detail=issue.cause,
        evidence=tuple(dict.fromkeys(evidence)),
        remedy=_remedy(environment, issue),
        references=tuple(reference.ref for reference in issue.references),
    )


def _remedy(environment: Environment, issue: Issue) -> Remedy:
    """The mitigations in the words of the frameworks that are installed, the best proven first."""
    names = set(TRAINERS) & set(environment.packages) | {"vllm"}
    offers = []
    for mitigation in sorted(issue.mitigations, key=_rank):
        if mitigation.evidence == "executed" and not mitigation.helps:
            continue
        edits = tuple(mitigation.actions(name for name, _ in mitigation.edits if name in names))
        offers.append(
            Offer(
                mitigation.name,
                mitigation.about,
                SHOWN if mitigation.evidence == "executed" else UNTRIED,
                mitigation.evidence,
                edits,
                helps=mitigation.helps,
                fails=mitigation.fails,
            )
        )
    return Remedy((Explain(issue.code),), tuple(offers))


def _rank(mitigation: Mitigation) -> tuple[int, int]:
    return -model.EVIDENCE.index(mitigation.evidence), len(mitigation.fails) - len(mitigation.helps)
