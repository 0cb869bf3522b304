"""The verdict at a terminal: the sentence, the chain with its evidence, what helps, all others in a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.text import Text

from diagnostics import door
from diagnostics.hang.show import groups

if TYPE_CHECKING:
    from typing import TextIO

    from rich.console import Console

_HEADS = {
    "hang": ("HANG", "bold red"),
    "waiting": ("WAITING", "yellow"),
    "progress": ("no hang", "green"),
    "idle": ("no hang", "green"),
    "unknown": ("UNKNOWN", "bold yellow"),
}


def render(document: dict[str, Any], stream: TextIO, *, stacks: bool = False) -> None:
    """Writes it; colour and width follow the terminal and NO_COLOR."""
    console = door.console(stream, highlight=False, soft_wrap=False)
    console.size = console.size
    word, style = _HEADS[document["outcome"]]
    head = Text(word, style=style)
    if document["code"]:
        head.append(f"  {document['code']}", style="bold")
    if document["outcome"] == "hang":
        head.append(f"  {document['certainty']}", style="dim")
    console.print(head)
    console.print(Padding(Text(document["sentence"]), (0, 0, 0, 2)))
    _chain(console, document)
    _section(console, "Seen of it", document["evidence"])
    _helps(console, document["helps"])
    _others(console, document)
    _section(console, "Excluded", document["excluded"])
    _section(console, "Not seen", document["unseen"])
    _section(console, "Next", document["next"])
    _section(console, "Notes", document["notes"])
    if stacks:
        _section(console, "Stacks, outermost first", groups.tree(document))
    console.print(Text(_watched(document), style="dim"))


def _chain(console: Console, document: dict[str, Any]) -> None:
    names = {one["key"]: one["label"] for one in document["processes"]}
    for depth, edge in enumerate(document["chain"]):
        arrow = Text(f"{'  ' * min(depth, 6)}{names.get(edge['source'], edge['source'])} ")
        arrow.append(f"{edge['text']} {edge['label']}", style="bold")
        if not edge["certain"]:
            arrow.append("  (the only one left, not read directly)", style="dim")
        console.print(Padding(arrow, (1 if depth == 0 else 0, 0, 0, 2)))
        for line in edge["evidence"]:
            console.print(Padding(Text(line, style="dim"), (0, 0, 0, 6 + 2 * min(depth, 6))))


def _section(console: Console, title: str, lines: list[str]) -> None:
    if lines:
        console.print()
        console.print(Text(f"{title}:", style="bold"))
        for line in lines:
            console.print(Padding(Text(line), (0, 0, 0, 2)))


def _helps(console: Console, helps: dict[str, Any]) -> None:
    if not helps:
        return
    console.print()
    console.print(Text(f"What helps ({helps['code']}: {helps['title']}):", style="bold"))
    for one in helps["mitigations"]:
        console.print(Padding(Text(f"{one['name']}: {one['about']}"), (0, 0, 0, 2)))
        for framework, edit in one["edits"].items():
            console.print(Padding(Text(f"{framework}: {edit}", style="dim"), (0, 0, 0, 4)))


def _others(console: Console, document: dict[str, Any]) -> None:
    console.print()
    console.print(Text("All processes:", style="bold"))
    for text, members in groups.alike(document):
        mark = (
            "▶ "
            if {one["key"] for one in members} & set(document["culprits"]) and document["outcome"] == "hang"
            else "  "
        )
        console.print(Padding(Text(f"{mark}{groups.called(members)}: {text}"), (0, 0, 0, 0)))


def _watched(document: dict[str, Any]) -> str:
    count = len(document["processes"])
    if document["source"] != "live":
        return f"read from: {document['source']}; {count} processes; of what was not in it nothing is known"
    return f"{count} processes watched for {document['watched_s']:g} s; nothing was stopped, no local variable was read"
