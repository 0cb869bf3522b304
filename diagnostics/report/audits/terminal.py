"""An audit at a terminal: each answer with its evidence, what helps, what was not asked, what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.report.audits import wording
from diagnostics.report.paper import Paper

if TYPE_CHECKING:
    from typing import TextIO

_STYLES = {
    "fault": "bold red",
    "clean": "green",
    "not_decided": "yellow",
    "masked": "yellow",
    "not_asked": "dim",
}


def render(document: dict[str, Any], stream: TextIO) -> None:
    """Writes it; colour and width follow the terminal and NO_COLOR."""
    paper = Paper(stream)
    paper.print([("audit: ", ""), (document["sentence"], _STYLES[document["outcome"]])], "bold")
    for role, value in document["subject"].items():
        paper.print(f"{role}: {value}", style="dim", indent=2)
    for answer in document["answers"]:
        _answer(paper, answer)
    paper.print()
    paper.print(cost(document), style="dim")


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
        return f"{document['tokens']} tokens in {document['requests']} requests, {told}; nothing was changed"
    return told
