"""Rank the mitigations of a known issue, and build findings and JSON summaries with fixes.

Mitigations for a case that the log shows (a frame, a line, a setting) come first. Those with an edit for the frameworks
in use or for vLLM come next, then those that helped in recorded runs against the most of the possible triggers. A
mitigation that only failed against the possible triggers, or helps only against triggers that cannot occur in the
installed releases, is not recommended. It is reported with the command that reproduces the failure, if one is recorded.
`recommended_fix` returns the ranked fix. `finding` and `finding_of_issue` build findings, `issue_summary` a summary.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from diagnostics import called_as, catalog, fixes
from diagnostics.catalog import model
from diagnostics.catalog.model import Bound, Issue, Mitigation
from diagnostics.findings import Evidence, Finding, Severity
from diagnostics.fixes import Fix
from diagnostics.frameworks import FRAMEWORKS
from diagnostics.versions import in_range, is_release, issue_package

# The frameworks run on vLLM, so vLLM's edit is used for frameworks without their own.
_ENGINE = "vllm"


def recommended_fix(
    issue: Issue,
    *,
    triggers: Iterable[str] = (),
    frameworks: Iterable[str] = (),
    releases: Mapping[str, str] | None = None,
    failure: Sequence[str] = (),
    logs: Sequence[str] = (),
) -> Fix:
    """Return the fix for a case: the mitigations of the issue, best first, and those known not to help.

    Args:
        issue: The known issue.
        triggers: Triggers that are possible in this case; empty if unknown.
        frameworks: Frameworks in use; empty if unknown.
        releases: Installed releases by package.
        failure: Matching lines, and `path:function` of each frame of the traceback.
        logs: Texts of the logs, in which settings are searched.
    """
    case = _Case(issue, triggers, frameworks, releases or {})
    shown = {entry.name for entry in issue.mitigations if _is_shown(entry, failure, logs)}
    rated = [(case.rate(entry, is_shown=entry.name in shown), entry) for entry in issue.mitigations]
    helpful = [pair for pair in rated if pair[0].standing != fixes.DOES_NOT_HELP]
    helpful.sort(key=lambda pair: (pair[1].name not in shown, case.rank(*pair)))
    useless = tuple(ranked for ranked, _ in rated if ranked.standing == fixes.DOES_NOT_HELP)
    return Fix((fixes.Explain(issue.code),), tuple(ranked for ranked, _ in helpful), useless)


def finding(
    code: str,
    severity: Severity,
    evidence: Iterable[Evidence],
    fix: Fix,
    detail: str = "",
    *,
    certainty: str = "",
    known_by: str = "static",
) -> Finding:
    """Return a finding with the title of its code, which is that of a check or of a known issue.

    The default certainty is `established` for a check. For a known issue it is `supported`, because a run with the
    installed release may never meet the issue.
    """
    issue = catalog.load().get(code)
    title = issue.title if issue else catalog.load_checks()[code].title
    references = tuple(reference.ref for reference in issue.references) if issue else ()
    certainty = certainty or ("supported" if issue else "established")
    return Finding(code, title, severity, certainty, known_by, detail, tuple(evidence), fix, references)


def finding_of_issue(issue: Issue, certainty: str, evidence: Iterable[tuple[str, str]]) -> Finding:
    """Return an observed issue as a finding (an error) with its recommended fix.

    Args:
        issue: The known issue.
        certainty: Certainty that the issue applies to the user's case.
        evidence: (observed value, its location) of each piece of evidence.
    """
    levels = (claim.evidence for claim in issue.affected)
    return Finding(
        issue.code,
        issue.title,
        Severity.ERROR,
        certainty,
        known_by=max(levels, key=model.EVIDENCE.index, default="declared"),
        evidence=tuple(Evidence(text, place) for text, place in evidence),
        remedy=recommended_fix(issue),
    )


def issue_summary(issue: Issue) -> dict[str, Any]:
    """Return title, cause and the mitigations that may help for a JSON document, the best mitigation first."""
    by_name = {entry.name: entry for entry in issue.mitigations}
    ranked = [by_name[item.mitigation] for item in recommended_fix(issue).offers]
    return {
        "title": issue.title,
        "cause": " ".join(issue.cause.split()),
        "mitigations": [
            {"name": m.name, "about": m.description, "edits": m.by_framework(), "evidence": m.evidence}
            for m in ranked
        ],
    }


def possible_triggers(issue: Issue, releases: Mapping[str, str]) -> tuple[str, ...]:
    """Return the issue's triggers that can occur in the installed releases; all of them if the release is unknown."""
    release = releases.get(issue_package(issue))
    if release is None:
        return issue.trigger_names()
    limited = [trigger for trigger in issue.triggers if trigger.versions]
    impossible = {trigger.name for trigger in limited if not in_range(release, trigger.versions)}
    return tuple(name for name in issue.trigger_names() if name not in impossible)


def edits_for(
    mitigation: Mitigation, frameworks: Iterable[str], releases: Mapping[str, str]
) -> list[tuple[fixes.Edit, Bound]]:
    """Return (edit, bound) of the edits for frameworks, without options that the installed release does not have."""
    result = [
        (edit, bound)
        for name in dict.fromkeys(frameworks)
        for edit, bound in mitigation.known_edits()
        if edit.framework == name and _option_exists(edit.framework, bound, releases)
    ]
    counts = Counter(edit.framework for edit, _ in result)
    # If a framework has several edits, each text names its releases.
    return [
        (replace(edit, versions=bound.versions), bound)
        if isinstance(edit, fixes.SetOption) and counts[edit.framework] > 1
        else (edit, bound)
        for edit, bound in result
    ]


def _option_exists(framework: str, bound: Bound, releases: Mapping[str, str]) -> bool:
    """Return whether the installed release has an edit's options; True if the release is unknown."""
    packages = FRAMEWORKS[framework].packages
    release = next((releases[name] for name in packages if name in releases), "")
    return not bound.versions or not is_release(release) or in_range(release, bound.versions)


def _is_shown(mitigation: Mitigation, failure: Sequence[str], logs: Sequence[str]) -> bool:
    """Return whether the traceback, a matching line, two numbers in it or a setting show a mitigation's case."""
    found = (mitigation.compares and re.search(mitigation.compares, text) for text in failure)
    if any(match and int(match["less"]) < int(match["more"]) for match in found):
        return True
    pairs = ((mitigation.frames, failure), (mitigation.settings, logs))
    return any(part in text for parts, searched in pairs for part in parts for text in searched)


class _Case:
    """A case of an issue: its possible triggers, and the frameworks and releases in use."""

    def __init__(
        self, issue: Issue, triggers: Iterable[str], frameworks: Iterable[str], releases: Mapping[str, str]
    ) -> None:
        self._issue, self._releases = issue, releases
        self._known, self._frameworks = tuple(triggers), tuple(frameworks)
        self._release_triggers = possible_triggers(issue, releases)
        self._possible = self._known or self._release_triggers

    def rate(self, mitigation: Mitigation, *, is_shown: bool) -> fixes.RankedMitigation:
        """Return a mitigation with its test results for this case, and its condition unless the log shows that."""
        helped = [name for name in self._possible if name in mitigation.helps]
        failed = [name for name in self._possible if name in mitigation.fails]
        executed = mitigation.evidence == "executed"
        # A mitigation that helps only against triggers that cannot occur in these releases is useless here.
        may_help = set(mitigation.helps) & set(self._release_triggers)
        useless = executed and not helped and bool(failed or not may_help)
        edits = self._edits(mitigation)
        return fixes.RankedMitigation(
            mitigation=mitigation.name,
            about=mitigation.about,
            when="" if is_shown else mitigation.when,
            standing=fixes.DOES_NOT_HELP if useless else fixes.VERIFIED if helped else fixes.NOT_TESTED,
            evidence=mitigation.evidence,
            edits=tuple(edit for edit, _ in edits),
            run_with=tuple(
                dict.fromkeys(it.package for it in self._issue.affected if it.evidence == "executed")
            ),
            as_run=any(set(helped or mitigation.helps) & set(bound.tested_triggers) for _, bound in edits),
            triggers=self._known,
            helps=mitigation.helps,
            fails=mitigation.fails,
            untried=tuple(name for name in self._possible if executed and name not in [*helped, *failed]),
            run=self._failing_run(mitigation, failed) if useless else None,
        )

    def _edits(self, mitigation: Mitigation) -> list[tuple[fixes.Edit, Bound]]:
        """Return the edits for the frameworks at hand, else for the engine; all edits if no framework is known."""
        names = [name for name, _ in mitigation.edits if not self._frameworks or name in self._frameworks]
        return edits_for(mitigation, names, self._releases) or edits_for(
            mitigation, [_ENGINE], self._releases
        )

    def _failing_run(self, mitigation: Mitigation, failed: list[str]) -> fixes.Run | None:
        """Return the command that reproduces a failure despite the mitigation; None if none is recorded."""
        words = (*called_as().split(), "repro", "run", self._issue.code, "--trigger")
        triggers = failed or list(mitigation.fails)
        return fixes.Run((*words, triggers[0], "--mitigation", mitigation.name)) if triggers else None

    def rank(self, ranked: fixes.RankedMitigation, mitigation: Mitigation) -> tuple[object, ...]:
        """Return the sort key of a mitigation that may help; the smallest is the best."""
        trainers = set(self._frameworks) - {_ENGINE}
        return (
            # A mitigation without an edit for these frameworks comes last.
            not ranked.edits,
            -sum(name in self._possible for name in mitigation.helps),
            sum(name in self._possible for name in mitigation.fails),
            bool(trainers) and not any(name in trainers for name, _ in mitigation.edits),
            # Of two that help, the one that was run with exactly these options.
            not ranked.as_run,
            -len(mitigation.helps),
            len(mitigation.fails),
            -model.EVIDENCE.index(mitigation.evidence),
        )
