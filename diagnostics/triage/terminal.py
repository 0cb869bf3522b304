"""A triage report on a terminal, and why a report without a cause is not a healthy one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from diagnostics.fixes import count_of
from diagnostics.output.terminal import print_finding, print_text

if TYPE_CHECKING:
    from rich.console import Console

    from diagnostics.findings import CheckResult, Report

_STYLES = {"known": "bold red", "clean": "green"}
_MAX_SYMPTOMS = 2


_UNRESOLVED = {
    "unknown": "the log shows a failure that no known issue describes",
    "hypothesis": "the lines that would show the cause are not in these logs",
    "not_judged": "these logs show neither a known failure nor the end of the run",
    "empty": "there was nothing to read",
    "wrapper": "the root cause is not in these logs",
}


@dataclass(frozen=True)
class TriageForm:
    """The form of a triage report; its JSON and Markdown are the common ones."""

    def document(self, report: Report) -> dict[str, Any]:
        """Return nothing: the document is the common one."""
        del report
        return {}

    def template(self) -> str:
        """Return nothing: the template is the common one."""
        return ""

    def render(self, report: Report, console: Console, *, verbose: bool) -> None:
        """Print the report."""
        print_report(report, console, verbose=verbose)


def unresolved(subject: dict[str, Any]) -> str:
    """Return why no cause is known, with the line to read first; empty if one is known or the run went well."""
    text = _UNRESOLVED.get(subject["verdict"], "")
    anchors = subject.get("anchors") or ()
    first = f"; read first: {anchors[0]['text']} [{anchors[0]['place']}]" if anchors else ""
    return f"{text}{first}" if text else ""


def print_report(report: Report, console: Console, *, verbose: bool) -> None:
    """Print the verdict, findings, lines to read first, and hints."""
    subject = report.subject
    logs, verdict = subject["logs"], subject["verdict"]
    named = logs[0] if len(logs) == 1 else f"{len(logs)} logs"
    unread = verdict == "empty" and any(check.outcome == "crashed" for check in report.checks)
    head = Text(f"triage: {named}, {count_of(subject['lines'], 'line')}: ")
    style = _STYLES.get(verdict, "bold yellow")
    word = "not read" if unread else {"not_judged": "not checked"}.get(verdict, verdict)
    print_text(console, head + Text(word, style))
    if packages := ", ".join(f"{name} {version}" for name, version in subject["packages"].items()):
        print_text(console, f"installed according to the log: {packages}")
    for finding in report.findings:
        console.print()
        print_finding(console, finding, verbose=verbose)
    if subject["anchors"]:
        print_text(console, "\nLines to read first", "bold")
    for anchor in subject["anchors"]:
        rank = f"rank {anchor['rank']}: " if anchor["rank"] else ""
        print_text(console, f"- {rank}{anchor['text']} [{anchor['place']}]", indent=2)
    _print_hints(console, subject)
    console.print()
    for check in report.checks:
        _print_check(console, check)
    for note in report.remarks:
        print_text(console, f"note: {note}", "dim")
    if subject["fingerprint"]:
        print_text(console, f"fingerprint {subject['fingerprint']}", "dim")


def _print_hints(console: Console, subject: dict[str, Any]) -> None:
    for symptom in subject.get("symptoms", ())[:_MAX_SYMPTOMS]:
        times = f", {symptom['count']} lines" if symptom["count"] > 1 else ""
        print_text(console, f"\nthe metrics show that {symptom['what']}", "bold")
        print_text(console, f"- {symptom['first']['text']} [{symptom['first']['place']}{times}]", indent=2)
        print_text(console, symptom["means"], indent=2)
    if subject.get("near"):
        similar = "; ".join(f"{issue['code']} {issue['title']}" for issue in subject["near"])
        print_text(console, f"\nsimilar known issues, not a match: {similar}")


def _print_check(console: Console, check: CheckResult) -> None:
    if check.outcome == "crashed":
        print_text(console, f"unread {check.reason}", "bold yellow")
    elif check.outcome == "ignored":
        print_text(console, f"ignored {check.reason}", "dim")
    for missing in check.not_judged:
        print_text(console, f"not checked: {missing.text}", "yellow")
