"""A code, explained, as a page of Markdown: the documents' site has one for each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from diagnostics.frameworks import SHOWN
from diagnostics.output.issue_text import edits_of

if TYPE_CHECKING:
    from collections.abc import Mapping


def page(document: Mapping[str, Any]) -> str:
    """What a code is, who has it, why, what helps and what doesn't, and how each of it is known.

    Args:
        document: The entry, as `explain --format json` prints it.
    """
    parts = [f"# {document['code']}: {prose(document['title'])}"]
    if document["kind"] == "check":
        # Told by a check, and no known failure: there is nothing to it but what it means.
        return "\n\n".join([*parts, "What a check tells; no known failure.", prose(document["cause"])]) + "\n"
    concerned = ", ".join(SHOWN[name] for name in document["frameworks"])
    parts.append(f"{document['kind'].capitalize()}; {prose(document['family'])}; concerns {concerned}.")
    parts += ["## Why", prose(document["cause"])]
    parts += [prose(paragraph) for paragraph in document["detail"].split("\n\n") if paragraph]
    named = {mitigation["name"]: mitigation for mitigation in document["mitigations"]}
    for title, key in (("What helps", "offered"), ("What does not help", "does_not_help")):
        if document[key]:
            parts += [f"## {title}", *(_mitigation(named[name]) for name in document[key])]
    parts += ["## Who is affected", *map(_claim, document["affected"])]
    parts += _signature(document["signature"])
    if document["triggers"]:
        parts += ["## How it comes about", "\n".join(map(_trigger, document["triggers"]))]
        parts.append(_block(f"python -m repro run {document['code']}"))
    if document["references"]:
        told = [f"- {prose(one['ref'])}: {prose(one['about'])}" for one in document["references"]]
        parts += ["## References", "\n".join(told)]
    return "\n\n".join(parts) + "\n"


def prose(text: str) -> str:
    """A text of the catalogue: what stands between backticks is code, and nothing else is markup."""
    pieces = re.split(r"(`[^`\n]+`)", " ".join(text.split()))
    return "".join(
        piece if place % 2 else re.sub(r"([\\`*_{}\[\]<>|~#])", r"\\\1", piece)
        for place, piece in enumerate(pieces)
    )


def _claim(claim: Mapping[str, Any]) -> str:
    looked = f"; looked at up to {claim['looked_to']}" if claim["looked_to"] else ""
    releases = claim["versions"] or ", ".join(claim["releases"]) or "every release"
    return f"- {claim['package']} {prose(releases)} ({claim['evidence']}{looked}): {prose(claim['source'])}"


def _signature(signature: Mapping[str, Any] | None) -> list[str]:
    if not signature:
        return []
    parts = ["## How it looks in a log"]
    if signature["role"] != "root":
        parts.append(
            {"cascade": "It follows from something else.", "confirmation": "Beside a failure only."}[
                signature["role"]
            ]
        )
    if signature["any"]:
        parts += ["One of these patterns:", _block("\n".join(signature["any"]))]
    seen = [sample["text"] for sample in signature["samples"] if sample["matches"]]
    return [*parts, "A sample:", _block(seen[0].strip("\n"))] if seen else parts


def _trigger(one: Mapping[str, Any]) -> str:
    versions = f" ({prose(one['versions'])})" if one["versions"] else ""
    return f"- `{one['name']}`{versions}: {prose(one['about'])}"


def _mitigation(mitigation: Mapping[str, Any]) -> str:
    helps, fails = mitigation["helps"], mitigation["fails"]
    shown = (
        "shown by a run"
        if mitigation["evidence"] == "executed"
        else f"not run: {mitigation['evidence']} only"
    )
    lines = [f"### `{mitigation['name']}`", f"{prose(mitigation['about'])} ({shown})"]
    if mitigation["note"]:
        lines.append(prose(mitigation["note"]))
    told = [("Helped against", helps), ("Did not help against", fails)]
    facts = [f"- {what}: {', '.join(f'`{name}`' for name in names)}" for what, names in told if names]
    facts += [f"- {framework}: {prose(edit)}" for framework, edit in edits_of(mitigation)]
    facts.append(f"- cost: {prose(mitigation['cost'])}")
    return "\n\n".join([*lines, "\n".join(facts)])


def _block(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"
