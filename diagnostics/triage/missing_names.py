"""Explain errors about missing names with the API index: the releases that have the name, and the smallest change."""

from __future__ import annotations

from collections.abc import Iterator

from diagnostics.api_index.explain import Explanation, explain_missing
from diagnostics.findings import Certainty, Evidence, Finding, Severity
from diagnostics.fixes import Fix, Install
from diagnostics.triage.model import Hit
from diagnostics.triage.verdict import Diagnosis

_CODE = "CMP906"
_MAX_LINES = 20


def explain_missing_names(verdict: Diagnosis) -> Iterator[Finding]:
    """Yield a finding for the first error in the logs about a missing name of an indexed package."""
    installed = {package: version for package, (version, _place) in verdict.versions.items()}
    hits = [*verdict.anchors, *(hit for candidate in verdict.candidates for hit in candidate.hits)]
    for hit in hits[:_MAX_LINES]:
        message = f"{hit.traceback.type}: {hit.traceback.message}" if hit.traceback else hit.text
        explanation = explain_missing(message, installed)
        if explanation and (explanation.versions or explanation.callers):
            yield _finding(explanation, hit)
            return


def _finding(explanation: Explanation, hit: Hit) -> Finding:
    certain = bool(explanation.direction)
    evidence = [Evidence(hit.text, hit.location)]
    evidence += [
        Evidence(f"{item.package} uses {explanation.subject}", item.place) for item in explanation.callers
    ]
    if explanation.changes:
        fix = Fix.of(
            f"Change one release: {' or '.join(explanation.changes)}.", Install(explanation.changes[:1])
        )
    elif explanation.installed in explanation.versions:
        fix = Fix.of(
            f"By the index this release fits: check which {explanation.provider} the process imports."
        )
    else:
        fix = Fix.of(
            f"Choose a {explanation.provider} that fits: python -m diagnostics versions PACKAGE==VERSION lists them."
        )
    return Finding(
        _CODE,
        explanation.headline,
        Severity.ERROR,
        Certainty.ESTABLISHED if certain else Certainty.SUPPORTED,
        "static",
        explanation.sentences,
        tuple(evidence),
        fix,
    )
