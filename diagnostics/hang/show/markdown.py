"""The verdict as Markdown, to be pasted into an issue."""

from __future__ import annotations

from typing import Any

from diagnostics.hang.show import groups


def text(document: dict[str, Any]) -> str:
    """The page."""
    code = f" {document['code']}" if document["code"] else ""
    lines = [f"## hang: {document['outcome']}{code}", "", document["sentence"], ""]
    names = {one["key"]: one["label"] for one in document["processes"]}
    for number, edge in enumerate(document["chain"], start=1):
        lines.append(
            f"{number}. **{names.get(edge['source'], edge['source'])}** {edge['text']} **{edge['label']}**"
        )
        lines += [f"   - {item}" for item in edge["evidence"]]
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
                *(f"- `{item}`" if key == "next" else f"- {item}" for item in document[key]),
            ]
    lines += ["", "### All processes", "", "| processes | where |", "|---|---|"]
    for where, members in groups.alike(document):
        lines.append(f"| {groups.called(members)} | {where.replace('|', chr(92) + '|')} |")
    lines += [
        "",
        "<details><summary>Stacks, outermost first</summary>",
        "",
        "```",
        *groups.tree(document),
        "```",
        "",
        "</details>",
    ]
    return "\n".join(lines) + "\n"
