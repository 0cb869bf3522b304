"""The verdict at a terminal: the sentence, what to do first, who stands where; on demand all that was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnostics.hang.show import groups
from diagnostics.output.formats.finding import Line, short, told_first, write_lines
from diagnostics.output.paper import Paper
from diagnostics.output.wording import number

if TYPE_CHECKING:
    from typing import TextIO

    from diagnostics.output.findings import Finding

# Groups of processes that are shown at least, however much stands above them.
_GROUPS = 3

_HEADS = {
    "hang": ("HANG", "bold red"),
    "waiting": ("WAITING", "yellow"),
    "progress": ("no hang", "green"),
    "idle": ("no hang", "green"),
    "unknown": ("UNKNOWN", "bold yellow"),
}


def render(
    document: dict[str, Any],
    stream: TextIO,
    finding: Finding | None,
    *,
    verbose: bool = False,
    stacks: bool = False,
) -> None:
    """Writes it; colour and width follow the terminal and NO_COLOR.

    Args:
        document: The verdict.
        stream: Where it goes.
        finding: The known issue that it is; None where it is none.
        verbose: Whether all that was seen is written: without, it is what fits on a screen.
        stacks: Whether the tree of all stacks is, too.
    """
    paper = Paper(stream)
    word, style = _HEADS[document["outcome"]]
    code = f"  {document['code']}" if document["code"] else ""
    certainty = f"  {document['certainty']}" if document["outcome"] == "hang" else ""
    paper.print([(word, ""), (code, "bold"), (certainty, "dim")], style)
    paper.print(document["sentence"], indent=2)
    if not (verbose or stacks):
        _on_a_screen(paper, document, finding)
        return
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


def _on_a_screen(paper: Paper, document: dict[str, Any], finding: Finding | None) -> None:
    """What to do first, who stands where, what was not seen; where somebody looks, as much as fits on a screen."""
    lines = short(paper, finding) if finding else []
    # A hang that nobody described, or none yet: what to look at next is the one thing to do.
    lines += [] if finding else [each for told in document["next"][:1] for each in told_first(paper, told)]
    unseen = [f"not seen: {told}" for told in document["unseen"]]
    end = [*unseen[:1], *([f"{len(unseen) - 1} more was not seen"] if len(unseen) > 1 else [])]
    end.append(f"{_watched(document)}; --verbose shows everything")
    wrapped = [
        *paper.wrapped(document["sentence"], paper.width - 2),
        *(one for told in end for one in paper.wrapped(told, paper.width)),
    ]
    # The head, a blank line above each part, and the shell's prompt.
    room = paper.height - 1 - len(wrapped) - len(lines) - bool(lines) - 2 - 1
    if lines:
        paper.print()
        write_lines(paper, lines)
    paper.print()
    standing = groups.alike(document)
    most = max(_GROUPS, room) if paper.is_terminal else len(standing)
    shown = standing if len(standing) <= most else standing[: most - 1]
    write_lines(
        paper,
        [
            Line([(f"{_mark(document, members)}{groups.called(members)}: {text}", "")])
            for text, members in shown
        ],
    )
    if left := len(standing) - len(shown):
        paper.print(f"  and {left} more places", style="dim")
    for told in end:
        paper.print(told, style="dim")


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
        paper.print(f"{_mark(document, members)}{groups.called(members)}: {text}")


def _mark(document: dict[str, Any], members: list[dict[str, Any]]) -> str:
    """What stands before those that hold up the others."""
    holds_up = document["outcome"] == "hang" and {one["key"] for one in members} & set(document["culprits"])
    return "▶ " if holds_up else "  "


def _watched(document: dict[str, Any]) -> str:
    seen = number(len(document["processes"]), "process")
    if document["source"] != "live":
        return f"read from: {document['source']}; {seen}; of what was not in it nothing is known"
    return f"{seen} watched for {document['watched_s']:g} s; nothing was stopped, no local variable was read"
