"""One finding as a person reads it: five lines on a screen, all that is known of it on demand."""

from __future__ import annotations

from textwrap import shorten
from typing import NamedTuple

from diagnostics.collect.names import redact
from diagnostics.output import wording
from diagnostics.output.findings import Finding, Severity
from diagnostics.output.paper import Paper
from diagnostics.output.remedies import Explain

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
# Lines of a finding on a screen, and of what to do first among them.
_LINES = 5
_ADVICE = 2
_INDENT = 8
_CODE = 7


class Line(NamedTuple):
    """One line: cropped where somebody looks at it, whole where a program reads it or where it is to be copied."""

    text: list[tuple[str, str]]
    style: str = ""
    copied: bool = False


def write_finding(paper: Paper, finding: Finding, *, verbose: bool = False) -> None:
    """Writes one finding in at most five lines: what, evidence, what to do first, how it is known; or all of it.

    Args:
        paper: Where it goes. What is no terminal gets whole lines, whatever their length.
        finding: The finding; without `verbose` one line of an `info`.
        verbose: Whether everything that is known of it is written.
    """
    if verbose:
        head = _head(finding)
        paper.print(head.text, head.style)
        _write_all(paper, finding)
        return
    write_lines(paper, short(paper, finding))


def write_lines(paper: Paper, lines: list[Line]) -> None:
    """Writes lines as `short` made them."""
    for line in lines:
        crop = paper.is_terminal and not line.copied
        paper.print(line.text, line.style, crop=crop, whole=not crop)


def short(paper: Paper, finding: Finding) -> list[Line]:
    """A finding's lines: five where somebody looks at them, which a command to copy alone may exceed.

    What to do first is told whole as far as there is room; how it is known gives way to it, and the title's end.
    """
    head, known, evidence = _head(finding), _known(finding), _evidence(paper, finding)
    advice, command = _first(finding)
    told = redact(f"* {advice}") if advice else ""
    if finding.severity == Severity.INFO:
        return [head]
    commands = command_lines(paper, command) if command else []
    if not paper.is_terminal:
        return [head, *evidence, *([_line(f"        {told}")] if told else []), *commands, known]
    room = max(_LINES - 1 - len(commands), 1) - len(evidence)
    action = _wrapped(paper, told, 1 if commands else _ADVICE)[:room] if told else []
    room -= len(action)
    kept = [known][:room]
    heads = _whole_head(paper, finding)
    return [*(heads if len(heads) <= room - len(kept) + 1 else [head]), *evidence, *action, *commands, *kept]


def first_line(paper: Paper, finding: Finding) -> Line:
    """A finding that there is no more room for: what it is, and where, if that goes on the line."""
    head = _head(finding)
    place = redact(f" [{_short(finding.evidence[0].place)}]") if finding.evidence else ""
    fits = sum(len(text) for text, _ in head.text) + len(place) <= paper.width
    return Line([*head.text, (place, "dim")], head.style) if fits else head


def told_first(paper: Paper, text: str) -> list[Line]:
    """The one thing to do where no finding says it, as one says it: in two lines on a screen."""
    told = redact(f"* {text}")
    return _wrapped(paper, told, _ADVICE) if paper.is_terminal else [_line(f"        {told}")]


def unjudged(paper: Paper, what: str, remedy: str, why: str) -> list[Line]:
    """What could not be judged, in two lines: what would let it be judged, else why it was not."""
    first, *rest = _wrapped(paper, redact(f"{what}: {remedy or why}"), _ADVICE)
    return [Line([("unknown ", "yellow"), (first.text[0][0].lstrip(), "")]), *rest]


def command_lines(paper: Paper, command: str, indent: int = _INDENT, mark: str = "$ ") -> list[Line]:
    """A command that is there to be copied: folded on a screen, in one line elsewhere."""
    room = paper.width - indent - len(mark)
    first, *rest = wording.folded(command, room) if paper.is_terminal else [command]
    style = "bold" if mark == "$ " else ""
    gap = " " * (indent + len(mark))
    told = [" " * indent + mark + first, *(gap + line for line in rest)]
    return [Line([(line, "")], style, copied=True) for line in told]


def _line(text: str, style: str = "") -> Line:
    return Line([(text, "")], style)


def _head(finding: Finding) -> Line:
    word = (f"{finding.severity.word:<8}", "")
    return Line([word, (f"{finding.code} {finding.title}", "bold")], STYLES[finding.severity])


def _whole_head(paper: Paper, finding: Finding) -> list[Line]:
    """The head in as many lines as its title takes."""
    first, *rest = paper.wrapped(f"{finding.code} {finding.title}", paper.width - _INDENT)
    again = paper.wrapped(" ".join(rest), paper.width - _INDENT - _CODE) if rest else []
    word, style = (f"{finding.severity.word:<8}", ""), STYLES[finding.severity]
    return [
        Line([word, (first, "bold")], style),
        *(_line(" " * (_INDENT + _CODE) + line, style) for line in again),
    ]


def _known(finding: Finding) -> Line:
    known = f"how it is known: {finding.known_by}, {finding.certainty}; explain {finding.code} tells more"
    return _line(f"        {known}", "dim")


def _evidence(paper: Paper, finding: Finding) -> list[Line]:
    """The first of it, and how much more there is."""
    if not finding.evidence:
        return []
    first, *rest = finding.evidence
    more = f" and {len(rest)} more" if rest else ""
    place = _short(first.place) if paper.is_terminal else first.place
    # The place is what is looked for: a long text gives way to it.
    room = max(_LEAST, (paper.width if paper.is_terminal else _LONG) - 11 - len(place) - len(more))
    text = shorten(first.text, room, placeholder=" …")
    return [_line(redact(f"        {text} [{place}]{more}"), "dim")]


def _wrapped(paper: Paper, text: str, most: int) -> list[Line]:
    """A text in at most so many lines, the last of them to be cropped where it is longer."""
    lines = paper.wrapped(text, paper.width - _INDENT - 2)
    if len(lines) > most:
        lines = [*lines[: most - 1], " ".join(lines[most - 1 :])]
    return [_line(" " * (_INDENT + 2 if place else _INDENT) + line) for place, line in enumerate(lines)]


def _first(finding: Finding) -> tuple[str, str]:
    """The first thing to read of a remedy, and the first command of it that does more than explain."""
    if finding.remedy is None:
        return "", ""
    lines = wording.lines_of(finding.remedy)
    commands = wording.commands_of(
        action for action in finding.remedy.actions if not isinstance(action, Explain)
    )
    return next(iter(lines), ""), next(iter(commands), "")


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
            write_lines(paper, command_lines(paper, command))
