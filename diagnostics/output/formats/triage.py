"""A triage report on a terminal; belongs to triage, which will render it as its `extra`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from diagnostics.fixes import count_of
from diagnostics.output import sanitize
from diagnostics.output.terminal import print_finding, print_text

if TYPE_CHECKING:
    from typing import TextIO

    from rich.console import Console

    from diagnostics.findings import CheckResult, Report

_STYLES = {"known": "bold red", "clean": "green"}
_MAX_SYMPTOMS = 2


def render(report: Report, stream: TextIO | None = None, *, verbose: bool = False) -> None:
    """Print the report."""
    console, subject = sanitize.console(stream), report.subject
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
