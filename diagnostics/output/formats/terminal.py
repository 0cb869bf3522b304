"""A report as a person reads it: the verdict, then of each finding what, where, what to do first, how it is known."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from diagnostics.collect.names import redact
from diagnostics.output.findings import Severity
from diagnostics.output.formats.finding import (
    Line,
    first_line,
    short,
    unjudged,
    write_finding,
    write_lines,
)
from diagnostics.output.paper import Paper
from diagnostics.output.wording import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from diagnostics.output.findings import CheckResult, NotJudged, Report
    from diagnostics.output.paper import Pieces

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
    # What came of reading a file that is not what its name says: a fault of the file's, and nothing of ours crashed.
    "unread": ("unread", "bold yellow"),
}


class _Below(NamedTuple):
    """What stands below the findings, in as many lines as it takes."""

    text: Pieces
    style: str = ""
    indent: int = 0


def render(report: Report, stream: TextIO, *, verbose: bool = False) -> None:
    """Writes the report, the verdict first; colour and width follow the terminal and NO_COLOR.

    Args:
        report: What was found.
        stream: Where it goes.
        verbose: Whether all of it is written: without, it is what fits on a screen.
    """
    paper = Paper(stream)
    top = [_Below(f"{report.tool}: {_summary(report)}", "bold"), *map(_Below, map(redact, _subject(report)))]
    for told in top:
        paper.print(*told[:2])
    if verbose:
        end = list(_end(report, verbose=True))
        for finding in report.findings:
            paper.print()
            write_finding(paper, finding, verbose=True)
    else:
        found, end = _fitting(paper, report, _rows(paper, top))
        write_lines(paper, found)
    paper.print()
    for each in end:
        if isinstance(each, Line):
            write_lines(paper, [each])
        else:
            paper.print(each.text, each.style, indent=each.indent)


def _fitting(paper: Paper, report: Report, taken: int) -> tuple[list[Line], list[Line | _Below]]:
    """The findings' lines and what stands below them; where somebody looks, in so few that it is one screen.

    What was not judged is told in two lines each, and of the findings the last ones in a line each.
    """
    blocks = [short(paper, finding) for finding in report.findings]
    end = list(_end(report, verbose=False))
    # With each block's blank line, the one before the end, and the shell's prompt.
    taken += sum(len(block) + 1 for block in blocks) + 2
    if paper.is_terminal and taken + _rows(paper, end) > paper.height:
        end = list(_end(report, verbose=False, paper=paper))
    rows = taken + _rows(paper, end)
    for place in range(len(blocks) - 1, 0, -1):
        # A blank line more stands before those of one line.
        if not paper.is_terminal or rows + (place < len(blocks) - 1) <= paper.height:
            break
        rows -= len(blocks[place])
        blocks[place] = [first_line(paper, report.findings[place])]
    lines: list[Line] = []
    for place, block in enumerate(blocks):
        listed = report.findings[place].severity == Severity.INFO or (place and len(blocks[place - 1]) == 1)
        lines += block if listed else [Line([]), *block]
    return lines, end


def _rows(paper: Paper, told: Sequence[Line | _Below]) -> int:
    """How many lines of the screen it takes."""
    rows = 0
    for each in told:
        plain = each.text if isinstance(each.text, str) else "".join(piece for piece, _ in each.text)
        rows += 1 if isinstance(each, Line) else len(paper.wrapped(plain, paper.width - each.indent))
    return rows


def _end(report: Report, *, verbose: bool, paper: Paper | None = None) -> Iterator[Line | _Below]:
    """What stands below the findings: what was not judged (given a paper, in short), how the checks ended, notes."""
    unread: dict[NotJudged, list[str]] = {}
    for check in report.checks:
        if verbose or check.outcome == "crashed":
            yield from _check_lines(check)
        else:
            for each in check.not_judged:
                unread.setdefault(each, []).append(check.check)
    # One reason is told once, whatever it kept from being judged.
    for each, names in unread.items():
        if paper:
            yield from unjudged(paper, each.what, each.remedy, each.why)
        else:
            yield _marked("not_judged", ", ".join(dict.fromkeys(names)))
            yield _not_judged(each)
    if not verbose:
        yield _Below(_counted(report), "dim")
    for note in report.remarks if verbose else filter(None, [report.how]):
        yield _Below(redact(f"note: {note}"), "dim")


def _marked(outcome: str, name: str, reason: str = "") -> _Below:
    word, style = MARKS[outcome]
    return _Below([(f"{word:<8}", ""), (name, "default"), (reason, "")], style)


def _not_judged(each: NotJudged) -> _Below:
    return _Below(redact(f"not judged: {each.text}"), indent=_INDENT)


def _check_lines(check: CheckResult) -> Iterator[_Below]:
    outcome = "unread" if check.reads and check.outcome == "crashed" else check.outcome
    yield _marked(outcome, check.check, f": {redact(check.reason)}" if check.reason else "")
    yield from map(_not_judged, check.not_judged)


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
        lines.append(f"{file['file']}: {', '.join(kinds) or _nothing(report, file['file'])}")
    return [*lines, f"judged for {packages}" if packages else "judged for no release in particular"]


def _nothing(report: Report, file: str) -> str:
    """Why nothing in a file was judged, and where to look instead."""
    named = {f"reading {file}", "reading the command"}
    reasons = [check.reason for check in report.checks if check.check in named and check.outcome == "skipped"]
    return reasons[0] if reasons else "nothing that it knows"


def _summary(report: Report) -> str:
    counts = {
        severity: sum(f.severity is severity for f in report.findings) for severity in reversed(Severity)
    }
    told = [_many(number, severity) for severity, number in counts.items() if number]
    unread = sum(check.outcome == "crashed" and check.reads for check in report.checks)
    crashed = sum(check.outcome == "crashed" for check in report.checks) - unread
    tail = f"; {unread} {'files' if unread > 1 else 'file'} could not be read" if unread else ""
    tail += f"; {crashed} of {len(report.checks)} checks crashed" if crashed else ""
    open_checks = sum(bool(check.not_judged) for check in report.checks)
    open_ones = f"; {open_checks} of {len(report.checks)} not judged" if open_checks else ""
    looked = any(check.outcome not in {"skipped", "crashed"} and not check.reads for check in report.checks)
    nothing = "nothing found" if looked or not report.checks else "nothing was judged"
    return (", ".join(told) or nothing) + open_ones + tail


def _many(number: int, severity: Severity) -> str:
    """So many of that severity; "info" has no plural."""
    return f"{number} {severity.word}{'s' if number > 1 and severity > Severity.INFO else ''}"
