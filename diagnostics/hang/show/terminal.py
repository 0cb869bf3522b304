"""The verdict at a terminal: the sentence, the chain with its evidence, what helps, all others in a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.hang.show import groups
from diagnostics.report.paper import Paper

if TYPE_CHECKING:
    from typing import TextIO

_HEADS = {
    "hang": ("HANG", "bold red"),
    "waiting": ("WAITING", "yellow"),
    "progress": ("no hang", "green"),
    "idle": ("no hang", "green"),
    "unknown": ("UNKNOWN", "bold yellow"),
}


def render(document: dict[str, Any], stream: TextIO, *, stacks: bool = False) -> None:
    """Writes it; colour and width follow the terminal and NO_COLOR."""
    paper = Paper(stream)
    word, style = _HEADS[document["outcome"]]
    code = f"  {document['code']}" if document["code"] else ""
    certainty = f"  {document['certainty']}" if document["outcome"] == "hang" else ""
    paper.print([(word, ""), (code, "bold"), (certainty, "dim")], style)
    paper.print(document["sentence"], indent=2)
    _chain(paper, document)
    _section(paper, "Seen of it", document["evidence"])
    _helps(paper, document["helps"])
    _others(paper, document)
    _section(paper, "Excluded", document["excluded"])
    _section(paper, "Not seen", document["unseen"])
    _section(paper, "Next", document["next"])
    _section(paper, "Notes", document["notes"])
    if stacks:
        _section(paper, "Stacks, outermost first", groups.tree(document))
    paper.print(_watched(document), style="dim")


def _chain(paper: Paper, document: dict[str, Any]) -> None:
    names = {one["key"]: one["label"] for one in document["processes"]}
    for depth, edge in enumerate(document["chain"]):
        if depth == 0:
            paper.print()
        source = f"{'  ' * min(depth, 6)}{names.get(edge['source'], edge['source'])} "
        unread = "" if edge["certain"] else "  (the only one left, not read directly)"
        paper.print([(source, ""), (f"{edge['text']} {edge['label']}", "bold"), (unread, "dim")], indent=2)
        for line in edge["evidence"]:
            paper.print(line, style="dim", indent=6 + 2 * min(depth, 6))


def _section(paper: Paper, title: str, lines: list[str]) -> None:
    if lines:
        paper.print()
        paper.print(f"{title}:", style="bold")
        for line in lines:
            paper.print(line, indent=2)


def _helps(paper: Paper, helps: dict[str, Any]) -> None:
    if not helps:
        return
    paper.print()
    paper.print(f"What helps ({helps['code']}: {helps['title']}):", style="bold")
    for one in helps["mitigations"]:
        paper.print(f"{one['name']}: {one['about']}", indent=2)
        for framework, edit in one["edits"].items():
            paper.print(f"{framework}: {edit}", style="dim", indent=4)


def _others(paper: Paper, document: dict[str, Any]) -> None:
    paper.print()
    paper.print("All processes:", style="bold")
    for text, members in groups.alike(document):
        mark = (
            "▶ "
            if {one["key"] for one in members} & set(document["culprits"]) and document["outcome"] == "hang"
            else "  "
        )
        paper.print(f"{mark}{groups.called(members)}: {text}")


def _watched(document: dict[str, Any]) -> str:
    count = len(document["processes"])
    if document["source"] != "live":
        return f"read from: {document['source']}; {count} processes; of what was not in it nothing is known"
    return f"{count} processes watched for {document['watched_s']:g} s; nothing was stopped, no local variable was read"
