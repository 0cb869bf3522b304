"""The verdict as Markdown, to be pasted into an issue."""

from __future__ import annotations

from typing import Any

from diagnostics.hang.show import groups
from diagnostics.output.formats.markdown import _block as block
from diagnostics.output.formats.markdown import text_of as prose


def text(document: dict[str, Any]) -> str:
    """The page."""
    code = f" {document['code']}" if document["code"] else ""
    lines = [f"## hang: {document['outcome']}{code}", "", prose(document["sentence"]), ""]
    names = {one["key"]: one["label"] for one in document["processes"]}
    for number, edge in enumerate(document["chain"], start=1):
        source = prose(names.get(edge["source"], edge["source"]))
        lines.append(f"{number}. **{source}** {prose(edge['text'])} **{prose(edge['label'])}**")
        lines += [f"   - {prose(item)}" for item in edge["evidence"]]
    for title, key in (
        ("Seen of it", "evidence"),
        ("Excluded", "excluded"),
        ("Not seen", "unseen"),
        ("Next", "next"),
    ):
        if document[key]:
            lines += [
                "",
                f"### {title}",
                "",
                *(f"- {_command(item)}" if key == "next" else f"- {prose(item)}" for item in document[key]),
            ]
    lines += ["", "### All processes", "", "| processes | where |", "|---|---|"]
    for where, members in groups.alike(document):
        lines.append(f"| {prose(groups.called(members))} | {prose(where)} |")
    lines += [
        "",
        "<details><summary>Stacks, outermost first</summary>",
        "",
        block("\n".join(groups.tree(document))),
        "",
        "</details>",
    ]
    return "\n".join(lines) + "\n"


def _command(item: str) -> str:
    return f"`{item}`" if "`" not in item else prose(item)
