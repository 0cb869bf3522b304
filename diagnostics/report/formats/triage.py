"""A verdict on logs as a person reads it: what it is, where it shows, what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from diagnostics import door
from diagnostics.facts.names import redact
from diagnostics.report.formats.terminal import write_finding

if TYPE_CHECKING:
    from typing import Any, TextIO

    from rich.console import Console

    from diagnostics.report.findings import CheckResult, Report

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
    console = door.console(stream, highlight=False, soft_wrap=False)
    subject = report.subject
    logs = subject["logs"]
    named = logs[0] if len(logs) == 1 else f"{len(logs)} logs"
    head = Text(redact(f"triage: {named}, {subject['lines']} lines: "))
    console.print(head.append(subject["verdict"].replace("_", " "), style=_STYLES[subject["verdict"]]))
    packages = ", ".join(f"{name} {version}" for name, version in subject["packages"].items())
    if packages:
        console.print(Text(f"installed, says the log: {packages}"))
    for finding in report.findings:
        console.print()
        write_finding(console, finding, verbose=verbose)
    if subject["anchors"]:
        console.print()
        console.print(Text("where to look first", style="bold"))
    for anchor in subject["anchors"]:
        rank = f"rank {anchor['rank']}: " if anchor["rank"] else ""
        line = Text(redact(f"- {rank}{anchor['text']} [{anchor['place']}]"))
        console.print(Padding(line, (0, 0, 0, 2), expand=False))
    _write_more(console, subject)
    console.print()
    for check in report.checks:
        _write_check(console, check)
    for note in report.remarks:
        console.print(Text(redact(f"note: {note}"), style="dim"))
    if subject["fingerprint"]:
        console.print(Text(f"fingerprint {subject['fingerprint']}", style="dim"))


def _write_more(console: Console, subject: dict[str, Any]) -> None:
    """What metrics show, and what is near where no answer is known."""
    for symptom in subject.get("symptoms", ())[:_MOST_SYMPTOMS]:
        times = f", {symptom['count']} lines" if symptom["count"] > 1 else ""
        console.print()
        console.print(Text(f"the metrics show that {symptom['what']}", style="bold"))
        for text in (f"- {symptom['first']['text']} [{symptom['first']['place']}{times}]", symptom["means"]):
            console.print(Padding(Text(redact(text)), (0, 0, 0, 2), expand=False))
    if subject.get("near"):
        near = "; ".join(f"{issue['code']} {issue['title']}" for issue in subject["near"])
        console.print()
        console.print(Text(f"see also, near and not the answer: {near}"))


def _write_check(console: Console, check: CheckResult) -> None:
    if check.outcome == "crashed":
        # Its checks of logs are readings: what failed there is the file, and no fault of ours.
        console.print(Text(f"unread {redact(check.reason)}", style="bold yellow"))
    elif check.outcome == "ignored":
        console.print(Text(f"ignored {check.reason}", style="dim"))
    for each in check.not_judged:
        console.print(Text(redact(f"not judged: {each.text}"), style="yellow"))
