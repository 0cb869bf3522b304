"""A report as a person reads it: the verdict, then of each finding what, where, what to do first, how it is known."""

from __future__ import annotations

from collections import Counter
from textwrap import shorten
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from diagnostics import door
from diagnostics.facts.names import redact
from diagnostics.report import wording
from diagnostics.report.findings import Severity
from diagnostics.report.remedies import Explain
from diagnostics.report.wording import quoted

if TYPE_CHECKING:
    from typing import TextIO

    from rich.console import Console

    from diagnostics.report.findings import CheckResult, Finding, Report

STYLES = {
    Severity.BLOCKER: "bold red",
    Severity.ERROR: "red",
    Severity.WARNING: "yellow",
    Severity.INFO: "cyan",
}
# What a line holds that no terminal bounds.
_LONG = 240
# What an evidence's text and place are each left at least.
_LEAST = 40
_MOST = 3
_INDENT = (0, 0, 0, 8)
_ENDED = {
    "ok": "found nothing",
    "findings": "have findings",
    "not_judged": "could not judge",
    "ignored": "left out on demand",
    "skipped": "had nothing to look at",
    "crashed": "crashed",
    "unread": "could not be read",
}
MARKS = {
    "ok": ("ok", "green"),
    "findings": ("look", "yellow"),
    "not_judged": ("unknown", "yellow"),
    "ignored": ("ignored", "dim"),
    "skipped": ("skipped", "dim"),
    "crashed": ("CRASHED", "bold red"),
}
# What came of reading a file that is not what its name says: a fault of the file's, and nothing of ours crashed.
UNREAD = ("unread", "bold yellow")


def render(report: Report, stream: TextIO, *, verbose: bool = False) -> None:
    """Writes the report, the verdict first; colour and width follow the terminal and NO_COLOR.

    Args:
        report: What was found.
        stream: Where it goes.
        verbose: Whether all of it is written: without, it is what fits on a screen.
    """
    console = door.console(stream, highlight=False, soft_wrap=False)
    # Else it is asked of the system for every line.
    console.size = console.size
    console.print(Text(f"{report.tool}: {_summary(report)}", style="bold"))
    for told in _subject(report):
        console.print(Text(redact(told)))
    for finding in report.findings:
        if verbose or finding.severity > Severity.INFO:
            console.print()
        write_finding(console, finding, verbose=verbose)
    console.print()
    for check in report.checks:
        if verbose or check.outcome == "crashed" or check.not_judged:
            _write_check(console, check)
    if not verbose:
        console.print(Text(_counted(report), style="dim"))
    for note in report.remarks if verbose else filter(None, [report.how]):
        console.print(Text(redact(f"note: {note}"), style="dim"))


def _write_check(console: Console, check: CheckResult) -> None:
    word, style = UNREAD if check.reads and check.outcome == "crashed" else MARKS[check.outcome]
    line = Text(f"{word:<8}", style=style).append(check.check, style="default")
    if check.reason:
        line.append(f": {redact(check.reason)}")
    console.print(line)
    for each in check.not_judged:
        console.print(Padding(Text(redact(f"not judged: {each.text}")), _INDENT, expand=False))


def _counted(report: Report) -> str:
    """How the checks ended, in a line."""
    count = Counter(
        "unread" if check.outcome == "crashed" and check.reads else check.outcome for check in report.checks
    )
    told = [f"{count[outcome]} {words}" for outcome, words in _ENDED.items() if count[outcome]]
    return f"{len(report.checks)} checks: {', '.join(told)}; --verbose shows everything"


def _subject(report: Report) -> list[str]:
    """What was looked at: an environment, or files and the releases they are judged for."""
    packages = ", ".join(f"{name} {version}" for name, version in report.subject["packages"].items())
    if "files" not in report.subject:
        first = f"Python {report.subject['python']} in {report.subject['prefix']}"
        if "unnamed" in report.subject:
            first += ", doctor's own environment"
        others = "; ".join(quoted(("--prefix", place)) for place in report.subject.get("unnamed", ())[:_MOST])
        return [
            first,
            *([f"perhaps another is meant: {others}"] if others else []),
            packages or "none of the packages it knows is installed",
        ]
    lines = []
    for file in report.subject["files"]:
        kinds = [
            f"{plan['framework']} {'server' if plan['role'] == 'serve' else 'run'}" for plan in file["plans"]
        ]
        lines.append(f"{file['file']}: {', '.join(kinds) or 'nothing that it knows'}")
    return [*lines, f"judged for {packages}" if packages else "judged for no release in particular"]


def write_finding(console: Console, finding: Finding, *, verbose: bool = False) -> None:
    """Writes one finding in at most five lines: what, evidence, what to do first, how it is known; or all of it.

    Args:
        console: Where it goes. What is no terminal gets whole lines, whatever their length.
        finding: The finding; without `verbose` one line of an `info`.
        verbose: Whether everything that is known of it is written.
    """
    head = Text(f"{finding.severity.word:<8}", style=STYLES[finding.severity])
    head.append(f"{finding.code} ", style="bold").append(finding.title, style="bold")
    if verbose:
        console.print(head)
        _write_all(console, finding)
        return
    _line(console, head)
    if finding.severity == Severity.INFO:
        return
    if finding.evidence:
        first, *rest = finding.evidence
        more = f" and {len(rest)} more" if rest else ""
        place = _short(first.place) if console.is_terminal else first.place
        # The place is what is looked for: a long text gives way to it.
        room = max(_LEAST, (console.width if console.is_terminal else _LONG) - 11 - len(place) - len(more))
        text = shorten(first.text, room, placeholder=" …")
        _line(console, Text(redact(f"        {text} [{place}]{more}"), style="dim"))
    advice, command = _first(finding)
    if advice:
        _line(console, Text(redact(f"        * {advice}")))
    if command:
        # Never cropped: it is there to be copied.
        console.print(Text(f"        $ {command}", style="bold"), soft_wrap=True)
    known = f"how it is known: {finding.known_by}, {finding.certainty}; explain {finding.code} tells more"
    _line(console, Text(f"        {known}", style="dim"))


def _first(finding: Finding) -> tuple[str, str]:
    """The first thing to read of a remedy, and the first command of it that does more than explain."""
    if finding.remedy is None:
        return "", ""
    lines = wording.lines_of(finding.remedy)
    commands = wording.commands_of(
        action for action in finding.remedy.actions if not isinstance(action, Explain)
    )
    return next(iter(lines), ""), next(iter(commands), "")


def _line(console: Console, text: Text) -> None:
    """One line on a screen: cropped where somebody looks at it, whole where a program reads it."""
    if console.is_terminal:
        console.print(text, overflow="ellipsis", no_wrap=True)
    else:
        console.print(text, soft_wrap=True)


def _short(place: str) -> str:
    """The end of a long path, which is what differs.

    >>> _short("/home/ada/projects/grpo/.venv/lib/python3.12/site-packages/vllm-0.8.5.dist-info")
    '…/site-packages/vllm-0.8.5.dist-info'
    """
    return f"…/{'/'.join(place.split('/')[-2:])}" if len(place) > _LEAST and place.count("/") > 2 else place


def _write_all(console: Console, finding: Finding) -> None:
    if finding.detail:
        console.print(Padding(Text(redact(" ".join(finding.detail.split()))), _INDENT, expand=False))
    console.print(
        Padding(
            Text(f"how it is known: {finding.known_by}; that it concerns you: {finding.certainty}"),
            _INDENT,
        )
    )
    for item in finding.evidence:
        console.print(
            Padding(Text(redact(f"- {item.text} [{item.place}]"), style="dim"), _INDENT, expand=False)
        )
    if finding.remedy:
        console.print(Padding(Text("what to do", style="bold"), _INDENT, expand=False))
        for line in wording.lines_of(finding.remedy):
            console.print(Padding(Text(redact(f"* {line}")), _INDENT, expand=False))
        for command in wording.commands_of(finding.remedy.actions):
            # Never wrapped: it is there to be copied.
            console.print(Text(f"        $ {command}", style="bold"), soft_wrap=True)


def _summary(report: Report) -> str:
    counts = {
        severity: sum(f.severity is severity for f in report.findings) for severity in reversed(Severity)
    }
    told = [f"{number} {severity.word}" for severity, number in counts.items() if number]
    unread = sum(check.outcome == "crashed" and check.reads for check in report.checks)
    crashed = sum(check.outcome == "crashed" for check in report.checks) - unread
    tail = f"; {unread} {'files' if unread > 1 else 'file'} could not be read" if unread else ""
    tail += f"; {crashed} of {len(report.checks)} checks crashed" if crashed else ""
    open_ones = f"; {report.not_judged}" if report.not_judged else ""
    looked = any(check.outcome not in {"skipped", "crashed"} and not check.reads for check in report.checks)
    nothing = "nothing found" if looked or not report.checks else "nothing was judged"
    return (", ".join(told) or nothing) + open_ones + tail
