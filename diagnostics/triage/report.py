"""A verdict as a report: findings with evidence and, in the words of the framework in the log, what to change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from diagnostics import fixes
from diagnostics.catalog import model
from diagnostics.catalog.mitigation_ranking import recommended_fix
from diagnostics.findings import CheckResult, Evidence, Finding, NotChecked, Report, Severity
from diagnostics.output.redact import mask_and_cut
from diagnostics.triage.leads import MOST_LEADS
from diagnostics.triage.terminal import TriageForm, unresolved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diagnostics.triage.candidates import Candidate
    from diagnostics.triage.leads import Lead
    from diagnostics.triage.seen import Hit
    from diagnostics.triage.symptoms import Symptom
    from diagnostics.triage.verdict import Diagnosis

WHERE_ROOTS_ARE = (
    "the root is earlier or in another file: look in the same log for 'EngineCore failed to start' or the first"
    " traceback; with Ray in /tmp/ray/session_latest/logs/worker-*.err; with torchrun in the files of --log-dir, or at"
    " the rank whose failure has the earliest time; then run triage on all of them together"
)
UNENDED = "no failure in these logs that is known, and no end of the run: who hangs or is killed prints nothing more"
NOTES = {
    "hypothesis": "what would show the cause is not in these logs; what is there fits the following",
    "not_judged": UNENDED,
    "empty": "nothing to read: the log is empty; look for the file that the run really wrote (nohup.out, one a rank)",
    "clean": "no failure in these logs that is known, no traceback, and the run says that it ended",
    "unknown": "a failure that no entry describes; to report it: triage --format markdown",
    "wrapper": "root not in these logs, only what follows from it",
}


NOT_READ = "nothing of these logs could be read, so nothing can be said of them"


def report(verdict: Diagnosis, logs: list[str], passed: str = "") -> Report:
    """The report of one run's logs; `passed` says what in folders was passed over."""
    findings = [_finding(candidate, place, verdict) for place, candidate in enumerate(verdict.candidates)]
    findings += [_of_lead(lead, place) for place, lead in enumerate(verdict.leads[:MOST_LEADS])]
    judged = CheckResult.of("known issues", findings, _not_judged(verdict))
    outcome = "skipped" if verdict.state == "empty" else judged.outcome
    checks = [replace(judged, outcome=outcome, reason=fixes.count_of(verdict.lines, "line"))]
    checks += [CheckResult("logs", "crashed", problem) for problem in verdict.problems]
    notes = [_note(verdict)] if verdict.state in NOTES else []
    notes += [passed] if passed else []
    subject = _subject(verdict, logs)
    return Report(
        "triage", subject, tuple(checks), tuple(notes), unresolved=unresolved(subject), extra=TriageForm()
    )


def _not_judged(verdict: Diagnosis) -> Iterator[NotChecked]:
    """What of the logs was not judged, and what would let it be."""
    late = verdict.late
    if verdict.state == "unknown":
        first = verdict.anchors[0] if verdict.anchors else None
        yield NotChecked("the failure", "no entry describes it", place=place(first) if first else "")
    elif verdict.state == "hypothesis":
        yield NotChecked(
            "the cause", "what would show it is not in these logs", place=place(verdict.leads[0].hit)
        )
    elif verdict.state == "not_judged":
        for hit in late.failing[:3]:
            yield NotChecked(
                "a line that speaks of a failure",
                f"no rule knows it: {mask_and_cut(hit.text, 160)}",
                "",
                place(hit),
            )
        if late.symptoms:
            one = late.symptoms[0]
            yield NotChecked("the metrics", f"{one.what}: {one.hits[0].text}", "", place(one.hits[0]))
        elif not late.failing:
            last = late.last[-1] if late.last else None
            yield NotChecked(
                "how the run ended",
                f"the log ends without an ending{f': {mask_and_cut(last.text, 160)}' if last else ''}",
                "the log to its end, and the launcher's or the scheduler's; --excerpt if it is a part; if the run still"
                " stands there: grpo-doctor hang",
                place(last) if last else "",
            )


def _note(verdict: Diagnosis) -> str:
    """What the state means; of a wrapper, where the root is, in the words of the framework that the log shows."""
    if verdict.state == "empty" and verdict.problems:
        return NOT_READ
    note = NOTES[verdict.state]
    if verdict.state != "wrapper":
        return note
    searches = [one for one in verdict.candidates[0].issue.mitigations if one.searches]
    told = [
        fixes.edit_text(edit)
        for key in verdict.frameworks
        for search in searches
        for edit in search.actions([key])
    ]
    first = ", ".join(f"{key} {value}" for key, value in verdict.first_failed if value != "<N/A>")
    named = [f"torchrun names the first that failed: {first}"] if first else []
    # Where metrics say what went wrong, the paragraph about them says where to look.
    where = [] if verdict.late.symptoms else [WHERE_ROOTS_ARE]
    return "; ".join([note, *named, *(told or where)])


def _subject(verdict: Diagnosis, logs: list[str]) -> dict[str, Any]:
    return {
        "logs": logs,
        "lines": verdict.lines,
        "packages": {name: version for name, (version, _) in sorted(verdict.versions.items())},
        "frameworks": list(verdict.frameworks),
        "verdict": verdict.state,
        "fingerprint": verdict.fingerprint,
        "candidates": [_summary(candidate) for candidate in verdict.candidates],
        "followed": [_summary(candidate) for candidate in verdict.followed],
        "anchors": [_hit(hit) for hit in verdict.anchors],
        "leads": [
            {
                "code": lead.issue.code,
                "title": lead.issue.title,
                "why": lead.why,
                "settles": lead.settles,
                "place": place(lead.hit),
            }
            for lead in verdict.leads
        ],
        "near": [{"code": issue.code, "title": issue.title} for issue in verdict.near],
        "symptoms": [_symptom(symptom) for symptom in verdict.late.symptoms],
    }


def _symptom(symptom: Symptom) -> dict[str, Any]:
    return {
        "what": symptom.what,
        "means": symptom.means,
        "first": _hit(symptom.hits[0]),
        "count": len(symptom.hits),
        "causes": [{"code": cause.code, "settles": cause.settles} for cause in symptom.causes],
    }


def _summary(candidate: Candidate) -> dict[str, Any]:
    return {
        "code": candidate.issue.code,
        "title": candidate.issue.title,
        "role": candidate.role,
        "certainty": candidate.certainty,
        "triggers": list(candidate.triggers),
        "first": place(candidate.first),
        "count": candidate.count,
        "ranks": list(candidate.ranks),
        "confirmed_by": [_summary(one) for one in candidate.confirmed],
    }


def _hit(hit: Hit) -> dict[str, str]:
    return {"text": hit.text, "place": place(hit), "rank": hit.rank}


def place(hit: Hit) -> str:
    """File and line."""
    return f"{hit.source}:{hit.line}"


def _finding(candidate: Candidate, number: int, verdict: Diagnosis) -> Finding:
    issue = candidate.issue
    severity = Severity.WARNING if number else Severity.ERROR
    shown = [*candidate.evidence, *(one.first for one in candidate.confirmed)]
    evidence = [Evidence(hit.text, place(hit)) for hit in shown]
    evidence += [
        Evidence(f"{name} {version} is installed, says the log", where)
        for name, (version, where) in sorted(verdict.versions.items())
        if (name, version) in candidate.releases
    ]
    return Finding(
        code=issue.code,
        title=issue.title,
        severity=Severity.INFO if candidate.certainty == "hypothesis" and number else severity,
        certainty=candidate.certainty,
        known_by=max((claim.evidence for claim in issue.affected), key=model.EVIDENCE.index),
        detail=_detail(candidate, verdict),
        evidence=tuple(evidence),
        remedy=recommended_fix(
            issue,
            triggers=candidate.triggers,
            frameworks=verdict.frameworks,
            releases={name: version for name, (version, _) in verdict.versions.items()},
        ),
        references=tuple(reference.ref for reference in issue.references),
    )


def _of_lead(lead: Lead, number: int) -> Finding:
    """A hypothesis: what fits, and what would settle it."""
    return Finding(
        code=lead.issue.code,
        title=lead.issue.title,
        severity=Severity.INFO if number else Severity.WARNING,
        certainty="hypothesis",
        known_by=max((claim.evidence for claim in lead.issue.affected), key=model.EVIDENCE.index),
        detail=f"Seen: {lead.why}. What would settle it: {lead.settles}",
        evidence=(Evidence(lead.hit.text, place(lead.hit)),),
        references=tuple(reference.ref for reference in lead.issue.references),
    )


def _detail(candidate: Candidate, verdict: Diagnosis) -> str:
    told = [candidate.issue.cause]
    if candidate.role != "root":
        told.insert(0, "This is not the root, and nothing that is known in these logs is.")
    # A broad line is a hypothesis whatever the releases are.
    if candidate.certainty == "hypothesis" and not candidate.broad:
        named = ", ".join(map(" ".join, candidate.releases))
        told.append(f"Not known to happen with {named}, which the log names.")
    if candidate.looked_to:
        told.append(f"Nobody looked at releases after {candidate.looked_to}, and the log names a newer one.")
    if candidate.triggers:
        ways = {trigger.name: trigger.about for trigger in candidate.issue.triggers}
        told.append(
            f"How it came about, by the log: {'; or '.join(ways.get(name, name) for name in candidate.triggers)}."
        )
    seen = f"{candidate.count} lines" if candidate.count > 1 else "one line"
    ranks = f", of ranks {', '.join(candidate.ranks[:16])}" if candidate.ranks else ""
    told.append(f"First at {place(candidate.first)}; {seen}{ranks}.")
    if candidate.confirmed:
        beside = ", ".join(f"{one.issue.code} ({place(one.first)})" for one in candidate.confirmed)
        told.append(f"Confirmed by what would be benign alone: {beside}.")
    if verdict.followed and candidate is verdict.candidates[0]:
        after = ", ".join(f"{one.issue.code} ({place(one.first)})" for one in verdict.followed)
        told.append(f"Not causes but consequences: {after}.")
    return " ".join(told)
