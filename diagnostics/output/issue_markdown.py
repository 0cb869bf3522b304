"""A known issue explained as a Markdown page; the documentation site has one for each code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from diagnostics.findings import EVIDENCE_LEVELS
from diagnostics.frameworks import SHOWN
from diagnostics.output.issue_text import edits_of
from diagnostics.output.markdown import prose


def page(document: Mapping[str, Any]) -> str:
    """Return the page of a code: meaning, cause, mitigations with their test results, affected releases, evidence.

    Args:
        document: The entry, as `explain --format json` prints it.
    """
    parts = [f"# {document['code']}: {prose(document['title'])}"]
    if document["kind"] == "check":
        return (
            "\n\n".join([*parts, "A finding of a check, not a known issue.", prose(document["cause"])]) + "\n"
        )
    concerned = ", ".join(SHOWN[name] for name in document["frameworks"])
    parts.append(f"{document['kind'].capitalize()}; {prose(document['family'])}; affects {concerned}.")
    parts += ["## Why", prose(document["cause"])]
    parts += [prose(paragraph) for paragraph in document["detail"].split("\n\n") if paragraph]
    label = {mitigation["name"]: mitigation for mitigation in document["mitigations"]}
    for title, key in (("Mitigations", "offered"), ("What does not help", "does_not_help")):
        if document[key]:
            parts += [f"## {title}", *(_mitigation(label[name]) for name in document[key])]
    parts += ["## Affected releases", *map(_claim, document["affected"])]
    parts += _signature(document["signature"])
    if document["triggers"]:
        parts += ["## Triggers", "\n".join(map(_trigger, document["triggers"]))]
        parts.append(_block(f"python -m repro run {document['code']}"))
    if document["references"]:
        references = [
            f"- {prose(reference['ref'])}: {prose(reference['about'])}"
            for reference in document["references"]
        ]
        parts += ["## References", "\n".join(references)]
    return "\n\n".join(parts) + "\n"


def _claim(claim: Mapping[str, Any]) -> str:
    looked = f"; examined up to {claim['looked_to']}" if claim["looked_to"] else ""
    releases = claim["versions"] or ", ".join(claim["releases"]) or "every release"
    evidence = EVIDENCE_LEVELS[claim["evidence"]] + looked
    return f"- {claim['package']} {prose(releases)} ({evidence}): {prose(claim['source'])}"


def _signature(signature: Mapping[str, Any] | None) -> list[str]:
    if not signature:
        return []
    parts = ["## In a log"]
    if signature["role"] != "root":
        parts.append(
            {
                "cascade": "It follows from another failure.",
                "confirmation": "It counts only together with a failure.",
            }[signature["role"]]
        )
    if signature["any"]:
        parts += ["One of these patterns:", _block("\n".join(signature["any"]))]
    observed = [sample["text"] for sample in signature["samples"] if sample["matches"]]
    return [*parts, "A sample:", _block(observed[0].strip("\n"))] if observed else parts


def _trigger(one: Mapping[str, Any]) -> str:
    versions = f" ({prose(one['versions'])})" if one["versions"] else ""
    return f"- `{one['name']}`{versions}: {prose(one['about'])}"


def _mitigation(mitigation: Mapping[str, Any]) -> str:
    helps, fails = mitigation["helps"], mitigation["fails"]
    printed = (
        "verified"
        if mitigation["evidence"] == "executed"
        else f"not tested; {EVIDENCE_LEVELS[mitigation['evidence']]}"
    )
    lines = [f"### `{mitigation['name']}`", f"{prose(mitigation['about'])} ({printed})"]
    if mitigation["note"]:
        lines.append(prose(mitigation["note"]))
    trigger_lists = [("Helps against", helps), ("Does not help against", fails)]
    facts = [
        f"- {what}: {', '.join(f'`{name}`' for name in names)}" for what, names in trigger_lists if names
    ]
    facts += [f"- {framework}: {prose(edit)}" for framework, edit in edits_of(mitigation)]
    facts.append(f"- cost: {prose(mitigation['cost'])}")
    return "\n\n".join([*lines, "\n".join(facts)])


def _block(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"
