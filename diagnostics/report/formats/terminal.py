"""A report as a person reads it: what, why, how it is known, what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from diagnostics import door
from diagnostics.facts.environment import redact
from diagnostics.report import wording
from diagnostics.report.findings import Severity

if TYPE_CHECKING:
    from typing import TextIO

    from rich.console import Console

    from diagnostics.report.findings import Finding, Report

STYLES = {
    Severity.BLOCKER: "bold red",
    Severity.ERROR: "red",
    Severity.WARNING: "yellow",
    Severity.INFO: "cyan",
}
MARKS = {
    "ok": ("ok", "green"),
    "findings": ("look", "yellow"),
    "not_judged": ("unknown", "yellow"),
    "ignored": ("ignored", "dim"),
    "skipped": ("skipped", "dim"),
    "crashed": ("CRASHED", "bold red"),
}


def render(report: Report, stream: TextIO) -> None:
    """Writes the report; colour and width follow the terminal and NO_COLOR."""
    console = door.console(stream, highlight=False, soft_wrap=False)
    # Else it is asked of the system for every line.
    console.size = console.size
    for told in _subject(report):
        console.print(Text(redact(told)))
    for finding in report.findings:
        console.print()
        write_finding(console, finding)
    console.print()
    for check in report.checks:
        word, style = MARKS[check.outcome]
        line = Text(f"{word:<8}", style=style).append(check.check, style="default")
        if check.reason:
            line.append(f": {redact(check.reason)}")
        console.print(line)
        for each in check.not_judged:
            console.print(Padding(Text(redact(f"not judged: {each.text}")), (0, 0, 0, 8), expand=False))
    for note in report.remarks:
        console.print(Text(redact(f"note: {note}"), style="dim"))
    console.print(Text(_summary(report)))


def _subject(report: Report) -> list[str]:
    """What was looked at: an environment, or files and the releases they are judged for."""
    packages = ", ".join(f"{name} {version}" for name, version in report.subject["packages"].items())
    if "files" not in report.subject:
        first = f"{report.tool}: Python {report.subject['python']} in {report.subject['prefix']}"
        return [first, packages or "none of the packages it knows is installed"]
    lines = []
    for file in report.subject["files"]:
        kinds = [
            f"{plan['framework']} {'server' if plan['role'] == 'serve' else 'run'}" for plan in file["plans"]
        ]
        lines.append(f"{report.tool}: {file['file']}: {', '.join(kinds) or 'nothing that it knows'}")
    return [*lines, f"judged for {packages}" if packages else "judged for no release in particular"]


def write_finding(console: Console, finding: Finding) -> None:
    """Writes one finding: what, how it is known, evidence, remedy."""
    head = Text(f"{finding.severity.word:<8}", style=STYLES[finding.severity])
    head.append(f"{finding.code} ", style="bold").append(finding.title, style="bold")
    console.print(head)
    if finding.detail:
        console.print(Padding(Text(redact(" ".join(finding.detail.split()))), (0, 0, 0, 8), expand=False))
    console.print(
        Padding(
            Text(f"how it is known: {finding.known_by}; that it concerns you: {finding.certainty}"),
            (0, 0, 0, 8),
        )
    )
    for item in finding.evidence:
        console.print(
            Padding(Text(redact(f"- {item.text} [{item.place}]"), style="dim"), (0, 0, 0, 8), expand=False)
        )
    if finding.remedy:
        console.print(Padding(Text("what to do", style="bold"), (0, 0, 0, 8), expand=False))
        for line in wording.lines_of(finding.remedy):
            console.print(Padding(Text(redact(f"* {line}")), (0, 0, 0, 8), expand=False))
        for command in wording.commands_of(finding.remedy.actions):
            # Never wrapped: it is there to be copied.
            console.print(Text(f"        $ {command}", style="bold"), soft_wrap=True)


def _summary(report: Report) -> str:
    counts = {
        severity: sum(f.severity is severity for f in report.findings) for severity in reversed(Severity)
    }
    told = [f"{number} {severity.word}" for severity, number in counts.items() if number]
    unseen = sum(check.outcome in {"skipped", "crashed"} for check in report.checks)
    tail = f"; {unseen} of {len(report.checks)} checks could not be made" if unseen else ""
    open_ones = f"; {report.not_judged}" if report.not_judged else ""
    return (", ".join(told) if told else "nothing found") + open_ones + tail
