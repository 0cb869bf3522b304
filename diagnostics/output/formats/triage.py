"""A verdict on logs as a person reads it: what it is, where it shows, what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics.collect.names import redact
from diagnostics.output.formats.finding import write_finding
from diagnostics.output.paper import Paper
from diagnostics.output.wording import number

if TYPE_CHECKING:
    from typing import Any, TextIO

    from diagnostics.output.findings import CheckResult, Report

_STYLES = {
    "known": "bold red",
    "wrapper": "bold yellow",
    "hypothesis": "bold yellow",
    "unknown": "bold yellow",
    "not_judged": "bold yellow",
    "clean": "green",
    "empty": "bold yellow",
}


_MOST_SYMPTOMS = 2


def render(report: Report, stream: TextIO, *, verbose: bool = False) -> None:
    """Writes the report; colour and width follow the terminal and NO_COLOR."""
    paper = Paper(stream)
    subject = report.subject
    logs = subject["logs"]
    named = logs[0] if len(logs) == 1 else f"{len(logs)} logs"
    verdict = subject["verdict"]
    head = redact(f"triage: {named}, {number(subject['lines'], 'line')}: ")
    # A log that holds something which is no text was not empty.
    unread = verdict == "empty" and any(check.outcome == "crashed" for check in report.checks)
    paper.print([(head, ""), ("not read" if unread else verdict.replace("_", " "), _STYLES[verdict])])
    packages = ", ".join(f"{name} {version}" for name, version in subject["packages"].items())
    if packages:
        paper.print(f"installed, says the log: {packages}")
    for finding in report.findings:
        paper.print()
        write_finding(paper, finding, verbose=verbose)
    if subject["anchors"]:
        paper.print()
        paper.print("where to look first", style="bold")
    for anchor in subject["anchors"]:
        rank = f"rank {anchor['rank']}: " if anchor["rank"] else ""
        paper.print(redact(f"- {rank}{anchor['text']} [{anchor['place']}]"), indent=2)
    _write_more(paper, subject)
    paper.print()
    for check in report.checks:
        _write_check(paper, check)
    for note in report.remarks:
        paper.print(redact(f"note: {note}"), style="dim")
    if subject["fingerprint"]:
        paper.print(f"fingerprint {subject['fingerprint']}", style="dim")


def _write_more(paper: Paper, subject: dict[str, Any]) -> None:
    """What metrics show, and what is near where no answer is known."""
    for symptom in subject.get("symptoms", ())[:_MOST_SYMPTOMS]:
        times = f", {symptom['count']} lines" if symptom["count"] > 1 else ""
        paper.print()
        paper.print(f"the metrics show that {symptom['what']}", style="bold")
        for text in (f"- {symptom['first']['text']} [{symptom['first']['place']}{times}]", symptom["means"]):
            paper.print(redact(text), indent=2)
    if subject.get("near"):
        near = "; ".join(f"{issue['code']} {issue['title']}" for issue in subject["near"])
        paper.print()
        paper.print(f"see also, near and not the answer: {near}")


def _write_check(paper: Paper, check: CheckResult) -> None:
    if check.outcome == "crashed":
        # Its checks of logs are readings: what failed there is the file, and no fault of ours.
        paper.print(f"unread {redact(check.reason)}", style="bold yellow")
    elif check.outcome == "ignored":
        paper.print(f"ignored {check.reason}", style="dim")
    for each in check.not_judged:
        paper.print(redact(f"not judged: {each.text}"), style="yellow")
