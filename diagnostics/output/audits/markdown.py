"""An audit as Markdown, to be pasted into an issue."""

from __future__ import annotations

from typing import Any

from diagnostics.output.audits import terminal, wording
from diagnostics.output.formats.markdown import text_of as prose


def text(document: dict[str, Any]) -> str:
    """The page."""
    parts = [f"## audit: {wording.HEADS[document['outcome']]}", "", prose(document["sentence"]), ""]
    parts += [f"- {prose(f'{role}: {value}')}" for role, value in document["subject"].items()]
    for answer in document["answers"]:
        code = f" {answer['code']}" if answer["code"] and answer["outcome"] == "fault" else ""
        head = f"### {wording.HEADS[answer['outcome']]}{code}: "
        parts += ["", head + prose(answer["sentence"])]
        if found := terminal.details(answer):
            parts += ["", *(f"- {prose(line)}" for line in found)]
        for one in answer["helps"].get("mitigations", ()):
            parts.append(f"- {prose('helps: ' + one['name'] + ': ' + one['about'])}")
    return "\n".join([*parts, "", prose(terminal.cost(document))]) + "\n"
