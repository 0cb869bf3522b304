"""An audit at a terminal: each answer with its evidence, what helps, what was not asked, what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.text import Text

from diagnostics import door
from diagnostics.report.audits import wording

if TYPE_CHECKING:
    from typing import TextIO

    from rich.console import Console

_STYLES = {
    "fault": "bold red",
    "clean": "green",
    "not_decided": "yellow",
    "masked": "yellow",
    "not_asked": "dim",
}


def render(document: dict[str, Any], stream: TextIO) -> None:
    """Writes it; colour and width follow the terminal and NO_COLOR."""
    console = door.console(stream, highlight=False, soft_wrap=False)
    console.size = console.size
    head = Text("audit: ", style="bold")
    head.append(document["sentence"], style=_STYLES[document["outcome"]])
    console.print(head)
    for role, value in document["subject"].items():
        console.print(Padding(Text(f"{role}: {value}", style="dim"), (0, 0, 0, 2)))
    for answer in document["answers"]:
        _answer(console, answer)
    console.print()
    console.print(Text(cost(document), style="dim"))


def _answer(console: Console, answer: dict[str, Any]) -> None:
    console.print()
    head = Text(wording.HEADS[answer["outcome"]], style=_STYLES[answer["outcome"]])
    head.append(f"  {answer['probe']}", style="dim")
    if answer["code"] and answer["outcome"] == "fault":
        head.append(f"  {answer['code']}", style="bold")
    head.append(f"  {answer['sentence']}")
    console.print(head)
    for line in details(answer):
        console.print(Padding(Text(line), (0, 0, 0, 4)))
    if answer["helps"]:
        console.print(
            Padding(Text(f"What helps ({answer['code']}: {answer['helps']['title']}):"), (0, 0, 0, 4))
        )
        for one in answer["helps"]["mitigations"]:
            console.print(Padding(Text(f"{one['name']}: {one['about']}"), (0, 0, 0, 6)))
            for framework, edit in one["edits"].items():
                console.print(Padding(Text(f"{framework}: {edit}", style="dim"), (0, 0, 0, 8)))


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
