"""An audit at a terminal: each fault with what to do first, and what is open; on demand all of each answer."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any

from diagnostics.output.audits import wording
from diagnostics.output.formats.finding import Line, first_line, short, unjudged, write_lines
from diagnostics.output.paper import Paper
from diagnostics.output.wording import number

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

    from diagnostics.output.findings import Finding

# Sentences of faults in the first line; of more it has the number.
_SENTENCES = 2
# Lines of a fault that no entry describes.
_LINES = 5

_STYLES = {
    "fault": "bold red",
    "clean": "green",
    "not_decided": "yellow",
    "masked": "yellow",
    "not_asked": "dim",
}


def render(
    document: dict[str, Any], stream: TextIO, findings: Mapping[str, Finding], *, verbose: bool = False
) -> None:
    """Writes it; colour and width follow the terminal and NO_COLOR.

    Args:
        document: The audit.
        stream: Where it goes.
        findings: Of each family whose fault is a known issue, what to do first.
        verbose: Whether all of each answer is written: without, it is what fits on a screen.
    """
    paper = Paper(stream)
    faults = [each for each in document["answers"] if each["outcome"] == "fault"]
    few = verbose or len(faults) <= _SENTENCES
    told = document["sentence"] if few else f"{len(faults)} faults"
    paper.print([("audit: ", ""), (told, _STYLES[document["outcome"]])], "bold")
    for role, value in document["subject"].items():
        paper.print(f"{role}: {value}", style="dim", indent=2, crop=paper.is_terminal and not verbose)
    if not verbose:
        taken = len(paper.wrapped(f"audit: {told}", paper.width)) + len(document["subject"])
        _on_a_screen(paper, document, findings, taken)
        return
    for answer in document["answers"]:
        _answer(paper, answer)
    paper.print()
    paper.print(cost(document), style="dim")


def _on_a_screen(paper: Paper, document: dict[str, Any], findings: Mapping[str, Finding], taken: int) -> None:
    """The faults, then what is open; where somebody looks, in so few lines that all of it is one screen."""
    faults = [each for each in document["answers"] if each["outcome"] == "fault"]
    known = [findings.get(each["family"]) for each in faults]
    blocks = [
        short(paper, one) if one else _unknown(paper, each) for each, one in zip(faults, known, strict=True)
    ]
    open_ones = [block for each in document["answers"] if is_open(each) for block in [_open(paper, each)]]
    end = _counted(document)
    # Its own blank line, and the shell's prompt.
    taken += len(paper.wrapped(end, paper.width)) + 2
    place = len(blocks) if paper.is_terminal else 0
    while place > 1 and taken + sum(len(block) + 1 for block in [*blocks, *open_ones[:1]]) > paper.height:
        place -= 1
        one = known[place]
        blocks[place] = [first_line(paper, one) if one else blocks[place][0]]
    for block, at in zip(blocks, count(), strict=False):
        write_lines(paper, [*([] if at and len(blocks[at - 1]) == 1 else [Line([])]), *block])
    taken += sum(len(block) + 1 for block in blocks)
    shown = open_ones
    if paper.is_terminal:
        room = paper.height - taken - 2
        shown = [
            block for at, block in enumerate(open_ones) if sum(map(len, open_ones[: at + 1])) <= max(room, 2)
        ]
    paper.print()
    for block in shown:
        write_lines(paper, block)
    if left := len(open_ones) - len(shown):
        paper.print(f"{left} more could not be told", style="yellow")
    paper.print(end, style="dim")


def is_open(answer: Mapping[str, Any]) -> bool:
    """Whether an answer keeps an audit from being clean, and is no fault."""
    return answer["outcome"] in {"not_decided", "masked"} or (
        answer["outcome"] == "not_asked" and answer["decisive"]
    )


def _open(paper: Paper, answer: dict[str, Any]) -> list[Line]:
    """What could not be told, and what would tell it; where somebody looks, in two lines."""
    wanted = next((f"to decide it: {each['text']}" for each in answer["wanted"]), "")
    if answer["outcome"] == "masked":
        return unjudged(paper, wording.about(answer["family"]), "", answer["sentence"].partition(": ")[2])
    return unjudged(paper, wording.about(answer["family"]), wanted, wording.HEADS[answer["outcome"]])


def _unknown(paper: Paper, answer: dict[str, Any]) -> list[Line]:
    """A fault that no entry describes: what it is, and what was seen of it."""
    told = f"{answer['sentence']} [{answer['probe']}]"
    first, *rest = paper.wrapped(told, paper.width - 8) if paper.is_terminal else [told]
    lines = [
        Line([("error   ", ""), (first, "bold")], "red"),
        *(Line([(f"        {one}", "")]) for one in rest),
    ]
    return [*lines, *(Line([(f"        {told}", "dim")]) for told in details(answer))][:_LINES]


def _counted(document: dict[str, Any]) -> str:
    """How many answers there are of each outcome, and what it took."""
    counts = Counter(each["outcome"] for each in document["answers"])
    words = {**wording.HEADS, "fault": "fault" if counts["fault"] == 1 else "faults"}
    told = [f"{counts[outcome]} {words[outcome]}" for outcome in _STYLES if counts[outcome]]
    return f"{', '.join(told) or 'nothing asked'}; {cost(document)}; --verbose shows everything"


def _answer(paper: Paper, answer: dict[str, Any]) -> None:
    paper.print()
    code = f"  {answer['code']}" if answer["code"] and answer["outcome"] == "fault" else ""
    head = [(wording.HEADS[answer["outcome"]], ""), (f"  {answer['probe']}", "dim"), (code, "bold")]
    paper.print([*head, (f"  {answer['sentence']}", "")], _STYLES[answer["outcome"]])
    for line in details(answer):
        paper.print(line, indent=4)
    if answer["helps"]:
        paper.print(f"What helps ({answer['code']}: {answer['helps']['title']}):", indent=4)
        for one in answer["helps"]["mitigations"]:
            paper.print(f"{one['name']}: {one['about']}", indent=6)
            for framework, edit in one["edits"].items():
                paper.print(f"{framework}: {edit}", style="dim", indent=8)


def details(answer: dict[str, Any]) -> list[str]:
    """The lines below an answer."""
    lines = [wording.estimate(each) for each in answer["estimates"]]
    if answer["outcome"] == "fault" and answer["residual"] is not None:
        floor = f", floor {answer['floor']:.2g}" if answer["floor"] is not None else ""
        other = answer["runner_up"]
        second = f"; next best: {other['name']}, off by {other['residual']:.2g}" if other else ""
        lines.append(
            f"so explained it is off by {answer['residual']:.2g}{floor} ({wording.counted(answer)}){second}"
        )
    lines += [fact["text"] for fact in answer["facts"]]
    return lines + [f"to decide it: {fact['text']}" for fact in answer["wanted"]]


def cost(document: dict[str, Any]) -> str:
    """What it took."""
    told = f"{document['seconds']:g} s"
    if document["source"] == "live":
        spent = f"{number(document['tokens'], 'token')} in {number(document['requests'], 'request')}"
        return f"{spent}, {told}; nothing was changed"
    return told
