"""Turn the verdict on logs into a report, with fixes for the run's framework, and print it on the terminal."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from diagnostics import called_as, fixes
from diagnostics.catalog import model
from diagnostics.catalog.mitigation_ranking import finding_of_issue, recommended_fix
from diagnostics.catalog.model import Issue
from diagnostics.findings import Certainty, CheckResult, Extra, Finding, NotChecked, Report, Severity
from diagnostics.logs.tracebacks import short_path
from diagnostics.output.redact import truncate
from diagnostics.output.terminal import cut_text, print_finding, print_text
from diagnostics.triage.candidates import Candidate, without_values
from diagnostics.triage.fallback import MAX_LEADS, Lead
from diagnostics.triage.log_end import ZERO_COUNTER, Stall
from diagnostics.triage.log_facts import MAX_TEXT, Hit
from diagnostics.triage.symptoms import Symptom
from diagnostics.triage.verdict import Diagnosis

_TEXT = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8").replace("grpo-doctor", called_as())
_TABLE = msgspec.toml.decode(_TEXT, type=dict[str, dict[str, str]])
NOTES, _HEADINGS = _TABLE["notes"], _TABLE["headings"]
_RESOLVED = {"known", "clean"}
_STYLES = {"known": "bold red", "clean": "green"}
# Names of counters of requests, samples or tasks that a process has.
_WORK = re.compile(r"(?i)run|queue|wait|req|task|buffer|pending")
_STALL, _FAILURE = "why the run stalls", "the failure"
_MAX_SYMPTOMS, _MAX_RANKS, _MAX_QUERY_WORDS = 2, 16, 14


def report(verdict: Diagnosis, logs: list[str], skipped: str = "") -> Report:
    """Return the report of one run's logs; `skipped` names the files in folders that were not read."""
    findings = [_finding(candidate, place, verdict) for place, candidate in enumerate(verdict.candidates)]
    # A computed finding comes before an entry whose proof is no better.
    if findings and any(_proof(it) >= _proof(findings[0]) for it in verdict.computed):
        findings[0] = replace(findings[0], severity=min(findings[0].severity, Severity.WARNING))
    # If the API index decides the case of a line, a general entry for such lines comes later, without its fix. So does
    # an entry about a configuration, which was reproduced with another option, and one that only may fit.
    decided = {it.evidence[0].place for it in verdict.computed if it.known_by == "static"}
    for number, candidate in enumerate(verdict.candidates):
        is_certain = _proof(findings[number]) == (0, model.EVIDENCE.index("executed"))
        is_exact = is_certain and not candidate.issue.code.startswith("CFG")
        if not is_exact and any(hit.location in decided for hit in candidate.hits):
            findings[number] = replace(findings[number], severity=Severity.INFO, remedy=None)
    leads = [lead for lead in verdict.leads if not verdict.computed or verdict.state != "known"]
    findings += [_lead_finding(lead, place) for place, lead in enumerate(leads[:MAX_LEADS])]
    findings += verdict.computed
    check = CheckResult.of("known issues", findings, _not_checked(verdict))
    outcome = "skipped" if verdict.state == "empty" else check.outcome
    checks = [replace(check, outcome=outcome, reason=fixes.count_of(verdict.lines, "line"))]
    checks += [CheckResult("logs", "crashed", problem) for problem in verdict.problems]
    notes = list(filter(None, [_note(verdict)])) if verdict.state in NOTES else []
    notes += [skipped] if skipped else []
    # The first part of a note gives the reason, the rest gives advice.
    unresolved = "" if verdict.state in _RESOLVED else NOTES[verdict.state].partition(";")[0]
    if unresolved and verdict.anchors:
        unresolved += f"; read first: {verdict.anchors[0].quoted} [{verdict.anchors[0].location}]"
    subject = _subject(verdict, logs)
    return Report("triage", subject, tuple(checks), tuple(notes), unresolved=unresolved, extra=TriageForm())


def _proof(finding: Finding) -> tuple[int, int]:
    """Return the sort key of a finding: certainty, then evidence level."""
    return list(Certainty.TEXT).index(finding.certainty), model.EVIDENCE.index(finding.known_by)


def _not_checked(verdict: Diagnosis) -> Iterator[NotChecked]:
    """Yield the facts that the logs do not show, with the input that would show them."""
    fallback = verdict.fallback
    if verdict.state == "unknown":
        place = verdict.anchors[0].location if verdict.anchors else ""
        if not any(finding.severity == Severity.ERROR for finding in verdict.computed):
            yield NotChecked(_FAILURE, "no known issue describes it", _upstream_search(verdict), place)
    elif verdict.state == "hypothesis":
        lead = verdict.leads[0]
        reason = f"nothing in the log shows that it is {lead.issue.code} and not another fault"
        yield NotChecked("the cause", reason, place=lead.hit.location)
    elif verdict.state == "not_judged":
        if fallback.failing:
            yield NotChecked(_FAILURE, "no known issue describes it", place=fallback.failing[0].location)
        if fallback.symptoms:
            symptom = fallback.symptoms[0]
            needed = "; ".join(cause.settles for cause in symptom.rule.causes)
            place = symptom.hits[0].location
            yield NotChecked("the cause of these metrics", symptom.rule.name, needed, place)
        elif fallback.stall:
            yield _stall(fallback.stall)
        elif not fallback.failing and not verdict.computed:
            last = fallback.last[-1] if fallback.last else None
            bar = fallback.open_bar
            progress = f"the run is at {bar.position} of {bar.total} [{bar.hit.location}]; " if bar else ""
            text = f"{progress}last line: {cut_text(last.quoted)}{_idle(last)}" if last else "no line"
            place = last.location if last else ""
            yield NotChecked("how the run ended", text, _TABLE["advice"]["no_end"], place)


def _upstream_search(verdict: Diagnosis) -> str:
    """Return advice to search the issues of the package that raised the first failure, with its message; "" if unknown.

    The message is without its values, which differ from run to run.
    """
    failure = verdict.anchors[0].traceback if verdict.anchors else None
    if failure is None or not failure.frames:
        return ""
    paths = [short_path(path) for path, _ in failure.frames if "-packages/" in path]
    packages = dict.fromkeys(path.partition("/")[0] for path in reversed(paths) if "/" in path)
    text = truncate(f"{failure.type.rpartition('.')[2]}: {failure.message}", MAX_TEXT)
    words = [word for word in without_values(text).split() if re.search(r"[^\W_]", word)]
    named = " or ".join(list(packages)[:2])
    query = " ".join(words[:_MAX_QUERY_WORDS])
    return f"search the issues of {named} for: {query}" if named else ""


def _stall(stall: Stall) -> NotChecked:
    """Return an entry with the messages of a stalled run, and their counters at 0, which show what is idle."""
    zeros = [name for hit in stall.messages for name in _zero_counters(hit)]
    texts = " / ".join(cut_text(hit.quoted) for hit in stall.messages)
    idle = f"; counters at 0: {', '.join(dict.fromkeys(zeros))}" if zeros else ""
    number = fixes.count_of(len(stall.messages), "message")
    reason = f"the last {stall.lines} lines repeat {number} without a change: {texts}{idle}"
    return NotChecked(_STALL, reason, _TABLE["advice"]["stall"], stall.messages[0].location)


def _zero_counters(hit: Hit) -> list[str]:
    return [match[1].strip() for match in ZERO_COUNTER.finditer(hit.text)]


def _idle(hit: Hit) -> str:
    """Return a remark on a line of a monitor whose counters of work are 0, at least two; else ""."""
    work = [name for name in _zero_counters(hit) if _WORK.search(name)]
    counters = ", ".join(work)
    return (
        f"; counters at 0: {counters}: this side is idle, the other one sends no work"
        if len(work) > 1
        else ""
    )


def _note(verdict: Diagnosis) -> str:
    """Return a note on the verdict's state; for `wrapper` also where to search for the root cause. It may be empty."""
    if verdict.state == "empty" and verdict.problems:
        return "none of these logs could be read"
    note = NOTES[verdict.state]
    if verdict.state == "clean":
        return _clean_note(verdict)
    if verdict.state == "hypothesis":
        # The entry about what was not checked gives the reason.
        return _TABLE["advice"]["metrics"] if verdict.fallback.symptoms else ""
    if verdict.state == "not_judged" and verdict.fallback.symptoms:
        note = "no known failure in these logs; the metrics show a fault, but not its cause"
    elif verdict.state == "not_judged" and verdict.fallback.failing:
        note = NOTES["unknown"]
    if verdict.state != "wrapper":
        # The entry about what was not checked gives the reason already.
        return note.partition("; ")[2] if note == NOTES["unknown"] else note
    mitigations = verdict.candidates[0].issue.mitigations
    has_advice = any(list(it.actions(verdict.frameworks)) for it in mitigations if it.searches)
    first = ", ".join(f"{key}: {value}" for key, value in verdict.first_failed if value != "<N/A>")
    first_rank = [f"torchrun reports the rank that failed first: {first}"] if first else []
    # The fix of the first candidate, or symptoms in the metrics, already say where to search.
    on_ray = any(b"ray" in log.head + log.tail for log in verdict.logs)
    advice = (_TABLE["advice"][key] for key in ("wrapper", "ray" if on_ray else "torchrun", "together"))
    general = [] if verdict.fallback.symptoms or has_advice else [" ".join(advice)]
    return ". ".join([note, *first_rank, *general])


def _clean_note(verdict: Diagnosis) -> str:
    """Return a note on a clean log: the end of the run, with the lines about failures before or after it."""
    survived = [f"{cut_text(hit.quoted)} [{hit.location}]" for hit in verdict.fallback.survived]
    if verdict.consequences:
        return f"{NOTES['ended']} [{verdict.consequences[0].first.location}]"
    if not verdict.fallback.ended:
        return NOTES["excerpt"]
    return f"{NOTES['survived']}: {fixes.join_some(survived, 2, '; ')}" if survived else NOTES["clean"]


def _subject(verdict: Diagnosis, logs: list[str]) -> dict[str, Any]:
    """Return the verdict as JSON data, for the report's subject."""
    return {
        "logs": logs,
        "lines": verdict.lines,
        "packages": {name: version for name, (version, _) in sorted(verdict.versions.items())},
        "frameworks": list(verdict.frameworks),
        "verdict": verdict.state,
        "fingerprint": verdict.fingerprint,
        "candidates": [_candidate_document(candidate) for candidate in verdict.candidates],
        "followed": [_candidate_document(candidate) for candidate in verdict.consequences],
        "anchors": [_hit_document(hit) for hit in verdict.anchors],
        "leads": [
            _issue_document(lead.issue)
            | {"why": lead.why, "settles": lead.settles, "place": lead.hit.location}
            for lead in verdict.leads
        ],
        "near": [_issue_document(issue) for issue in verdict.similar],
        "symptoms": [_symptom_document(symptom) for symptom in verdict.fallback.symptoms],
    }


def _issue_document(issue: Issue) -> dict[str, str]:
    return {"code": issue.code, "title": issue.title}


def _symptom_document(symptom: Symptom) -> dict[str, Any]:
    return {
        "what": symptom.rule.name,
        "means": symptom.rule.meaning,
        "first": _hit_document(symptom.hits[0]),
        "count": len({hit.location for hit in symptom.hits}),
        "causes": [{"code": cause.code, "settles": cause.settles} for cause in symptom.rule.causes],
    }


def _candidate_document(candidate: Candidate) -> dict[str, Any]:
    return {
        **_issue_document(candidate.issue),
        "role": candidate.role,
        "certainty": candidate.certainty,
        "triggers": list(candidate.triggers),
        "first": candidate.first.location,
        "count": candidate.count,
        "ranks": list(candidate.ranks),
        "confirmed_by": [_candidate_document(it) for it in candidate.confirmed_by],
    }


def _hit_document(hit: Hit) -> dict[str, str]:
    return {"text": hit.quoted, "place": hit.location, "rank": hit.rank}


def _finding(candidate: Candidate, number: int, verdict: Diagnosis) -> Finding:
    """Return a candidate as a finding: severity by its position, with hits, releases and the recommended fix."""
    severity = Severity.WARNING if number else Severity.ERROR
    hits = [*candidate.evidence, *(it.first for it in candidate.confirmed_by)]
    evidence = [(hit.quoted, hit.location) for hit in hits]
    evidence += [
        (f"the log reports {name} {version}", place)
        for name, (version, place) in sorted(verdict.versions.items())
        if (name, version) in candidate.releases
    ]
    frames = [it for hit in candidate.hits if hit.traceback for it in hit.traceback.frames]
    return replace(
        finding_of_issue(candidate.issue, candidate.certainty, evidence),
        severity=Severity.INFO if candidate.certainty == "hypothesis" and number else severity,
        detail=_detail(candidate, verdict),
        references=tuple(reference.ref for reference in candidate.issue.references),
        remedy=recommended_fix(
            candidate.issue,
            triggers=candidate.triggers,
            frameworks=verdict.frameworks,
            releases={name: version for name, (version, _) in verdict.versions.items()},
            failure=[*(hit.text for hit in candidate.hits), *(f"{path}:{name}" for path, name in frames)],
            logs=[(log.head + log.tail).decode("utf-8", "replace") for log in verdict.logs],
        ),
    )


def _lead_finding(lead: Lead, number: int) -> Finding:
    """Return a lead as a finding with the observation and the test that would confirm it."""
    detail = f"Observed: {lead.why}. To confirm it: {lead.settles}"
    finding = finding_of_issue(lead.issue, "hypothesis", [(lead.hit.quoted, lead.hit.location)])
    severity = Severity.INFO if number else Severity.WARNING
    references = tuple(reference.ref for reference in lead.issue.references)
    title = f"Possible cause: {finding.title}"
    return replace(finding, title=title, severity=severity, detail=detail, references=references, remedy=None)


def _detail(candidate: Candidate, verdict: Diagnosis) -> str:
    """Return cause, role, releases, trigger, first line and consequences of a candidate as one text."""
    sentences = [candidate.issue.cause]
    if candidate.role != "root":
        sentences.insert(0, "This is a consequence; triage did not find the root cause.")
    # A broad line is a hypothesis in every release.
    if candidate.certainty == "hypothesis" and not candidate.broad:
        releases = ", ".join(map(" ".join, candidate.releases))
        sentences.append(f"Not known to occur in {releases}, the release in the log.")
    if candidate.examined_to:
        sentences.append(
            f"Releases after {candidate.examined_to} were not checked, and the log reports a newer one."
        )
    if candidate.triggers:
        ways = {trigger.name: trigger.about for trigger in candidate.issue.triggers}
        names = "; or ".join(ways.get(name, name) for name in candidate.triggers)
        sentences.append(f"Trigger, from the log: {names}.")
    lines = f"{candidate.count} lines" if candidate.count > 1 else "one line"
    ranks = f", of ranks {', '.join(candidate.ranks[:_MAX_RANKS])}" if candidate.ranks else ""
    sentences.append(f"First at {candidate.first.location}; {lines}{ranks}.")
    if candidate.confirmed_by:
        sentences.append(f"Confirmed by {_codes(candidate.confirmed_by)}.")
    if verdict.consequences and candidate is verdict.candidates[0]:
        sentences.append(f"Consequences: {_codes(verdict.consequences)}.")
    return " ".join(sentences)


def _codes(candidates: tuple[Candidate, ...]) -> str:
    return ", ".join(f"{it.issue.code} ({it.first.location})" for it in candidates)


class TriageForm(Extra):
    """Terminal output of a triage report; JSON and Markdown use the layout of all commands."""

    def render(self, report: Report, console: Console, *, verbose: bool) -> None:
        """Print the verdict, findings, lines to read first, and hints."""
        subject = report.subject
        _print_heading(report, console)
        for finding in report.findings:
            console.print()
            print_finding(console, finding, verbose=verbose)
        if subject["anchors"]:
            print_text(console, "\nLines to read first", "bold")
        for anchor in subject["anchors"]:
            rank = f"rank {anchor['rank']}: " if anchor["rank"] else ""
            print_text(console, f"{rank}{cut_text(anchor['text'])} [{anchor['place']}]", indent=2, lead="- ")
        _print_hints(console, subject)
        console.print()
        for check in report.checks:
            _print_check(console, check)
        for note in report.remarks:
            print_text(console, f"note: {note}", "dim")
        if subject["fingerprint"]:
            print_text(console, f"fingerprint {subject['fingerprint']}", "dim")


def _print_heading(report: Report, console: Console) -> None:
    logs, verdict = report.subject["logs"], report.subject["verdict"]
    names = logs[0] if len(logs) == 1 else f"{len(logs)} logs"
    unread = verdict == "empty" and any(check.outcome == "crashed" for check in report.checks)
    unchecked = {missing.what for check in report.checks for missing in check.not_judged}
    state = "not read" if unread else _HEADINGS.get(verdict, verdict)
    if verdict == "not_judged" and report.subject["symptoms"]:
        state = "the metrics show a fault of unknown cause"
    elif _STALL in unchecked:
        state = "the run stalls"
    elif verdict == "not_judged" and _FAILURE in unchecked:
        state = "unknown failure"
    heading = Text(f"triage: {names}, {fixes.count_of(report.subject['lines'], 'line')}: ")
    print_text(console, heading + Text(state, _STYLES.get(verdict, "bold yellow")))
    if packages := ", ".join(f"{name} {version}" for name, version in report.subject["packages"].items()):
        print_text(console, f"installed according to the log: {packages}")


def _print_hints(console: Console, subject: dict[str, Any]) -> None:
    for symptom in subject["symptoms"][:_MAX_SYMPTOMS]:
        times = f", {symptom['count']} lines" if symptom["count"] > 1 else ""
        print_text(console, f"\nmetrics: {symptom['what']}", "bold")
        print_text(console, f"- {symptom['first']['text']} [{symptom['first']['place']}{times}]", indent=2)
        print_text(console, symptom["means"], indent=2)
    if subject["near"]:
        print_text(console, "\nother known issues with similar words")
        for issue in subject["near"]:
            print_text(console, f"{issue['code']} {issue['title']}", indent=2, lead="- ")


def _print_check(console: Console, check: CheckResult) -> None:
    if check.outcome == "crashed":
        print_text(console, f"unread {check.reason}", "bold yellow")
    elif check.outcome == "ignored":
        print_text(console, f"ignored {check.reason}", "dim")
    for missing in check.not_judged:
        where = f" [{missing.place}]" if missing.place else ""
        print_text(console, f"not checked: {missing.what} ({missing.why}){where}", "yellow")
        if missing.remedy:
            print_text(console, missing.remedy, "yellow", indent=2)
