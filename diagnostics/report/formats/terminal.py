"""A report as a person reads it: the verdict, then of each finding what, where, what to do first, how it is known."""

from __future__ import annotations

from collections import Counter
from textwrap import shorten
from typing import TYPE_CHECKING

from diagnostics.facts.names import redact
from diagnostics.report import wording
from diagnostics.report.findings import Severity
from diagnostics.report.paper import Paper
from diagnostics.report.remedies import Explain
from diagnostics.report.wording import quoted

if TYPE_CHECKING:
    from typing import TextIO

    from diagnostics.report.findings import CheckResult, Finding, Report
    from diagnostics.report.paper import Pieces

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
_INDENT = 8
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
    paper = Paper(stream)
    paper.print(f"{report.tool}: {_summary(report)}", style="bold")
    for told in _subject(report):
        paper.print(redact(told))
    for finding in report.findings:
        if verbose or finding.severity > Severity.INFO:
            paper.print()
        write_finding(paper, finding, verbose=verbose)
    paper.print()
    for check in report.checks:
        if verbose or check.outcome == "crashed" or check.not_judged:
            _write_check(paper, check)
    if not verbose:
        paper.print(_counted(report), style="dim")
    for note in report.remarks if verbose else filter(None, [report.how]):
        paper.print(redact(f"note: {note}"), style="dim")


def _write_check(paper: Paper, check: CheckResult) -> None:
    word, style = UNREAD if check.reads and check.outcome == "crashed" else MARKS[check.outcome]
    reason = f": {redact(check.reason)}" if check.reason else ""
    paper.print([(f"{word:<8}", ""), (check.check, "default"), (reason, "")], style)
    for each in check.not_judged:
        paper.print(redact(f"not judged: {each.text}"), indent=_INDENT)


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


def write_finding(paper: Paper, finding: Finding, *, verbose: bool = False) -> None:
    """Writes one finding in at most five lines: what, evidence, what to do first, how it is known; or all of it.

    Args:
        paper: Where it goes. What is no terminal gets whole lines, whatever their length.
        finding: The finding; without `verbose` one line of an `info`.
        verbose: Whether everything that is known of it is written.
    """
    style = STYLES[finding.severity]
    head = [(f"{finding.severity.word:<8}", ""), (f"{finding.code} {finding.title}", "bold")]
    if verbose:
        paper.print(head, style)
        _write_all(paper, finding)
        return
    _line(paper, head, style)
    if finding.severity == Severity.INFO:
        return
    if finding.evidence:
        first, *rest = finding.evidence
        more = f" and {len(rest)} more" if rest else ""
        place = _short(first.place) if paper.is_terminal else first.place
        # The place is what is looked for: a long text gives way to it.
        room = max(_LEAST, (paper.width if paper.is_terminal else _LONG) - 11 - len(place) - len(more))
        text = shorten(first.text, room, placeholder=" …")
        _line(paper, redact(f"        {text} [{place}]{more}"), "dim")
    advice, command = _first(finding)
    if advice:
        _line(paper, redact(f"        * {advice}"))
    if command:
        # Never cropped: it is there to be copied.
        paper.print(f"        $ {command}", style="bold", whole=True)
    known = f"how it is known: {finding.known_by}, {finding.certainty}; explain {finding.code} tells more"
    _line(paper, f"        {known}", "dim")


def _first(finding: Finding) -> tuple[str, str]:
    """The first thing to read of a remedy, and the first command of it that does more than explain."""
    if finding.remedy is None:
        return "", ""
    lines = wording.lines_of(finding.remedy)
    commands = wording.commands_of(
        action for action in finding.remedy.actions if not isinstance(action, Explain)
    )
    return next(iter(lines), ""), next(iter(commands), "")


def _line(paper: Paper, text: Pieces, style: str = "") -> None:
    """One line on a screen: cropped where somebody looks at it, whole where a program reads it."""
    paper.print(text, style, crop=paper.is_terminal, whole=not paper.is_terminal)


def _short(place: str) -> str:
    """The end of a long path, which is what differs.

    >>> _short("/home/ada/projects/grpo/.venv/lib/python3.12/site-packages/vllm-0.8.5.dist-info")
    '…/site-packages/vllm-0.8.5.dist-info'
    """
    return f"…/{'/'.join(place.split('/')[-2:])}" if len(place) > _LEAST and place.count("/") > 2 else place


def _write_all(paper: Paper, finding: Finding) -> None:
    if finding.detail:
        paper.print(redact(" ".join(finding.detail.split())), indent=_INDENT)
    paper.print(
        f"how it is known: {finding.known_by}; that it concerns you: {finding.certainty}", indent=_INDENT
    )
    for item in finding.evidence:
        paper.print(redact(f"- {item.text} [{item.place}]"), style="dim", indent=_INDENT)
    if finding.remedy:
        paper.print("what to do", style="bold", indent=_INDENT)
        for line in wording.lines_of(finding.remedy):
            paper.print(redact(f"* {line}"), indent=_INDENT)
        for command in wording.commands_of(finding.remedy.actions):
            # Never wrapped: it is there to be copied.
            paper.print(f"        $ {command}", style="bold", whole=True)


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
