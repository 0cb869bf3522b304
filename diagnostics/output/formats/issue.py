"""A code, explained."""

from __future__ import annotations

import json
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from diagnostics.collect.secrets import mask
from diagnostics.frameworks import SHOWN
from diagnostics.output.paper import Paper
from diagnostics.output.wording import lines_of, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TextIO

    from diagnostics.output.remedies import Remedy

# The most of a line that was typed or offered.
_LONG = 200


def as_json(document: Mapping[str, Any]) -> str:
    """A document of the catalogue, as it is."""
    return json.dumps(document, indent=1, ensure_ascii=False)


def render(document: Mapping[str, Any], stream: TextIO, remedy: Remedy | None = None) -> None:
    """Writes what a code is and what to do first, then why it happens, what else helps, and how all that is known.

    Args:
        document: The code's.
        stream: Where it goes.
        remedy: What is done about it; None of a check's own code.
    """
    if document["kind"] == "check":
        # Told by a check, and no known failure: there is nothing to it but what it means.
        stream.write(f"{document['code']}  {document['title']}\n\n{document['cause']}\n")
        return
    paper = Paper(stream)
    paper.print(f"{document['code']}  {document['title']}", style="bold")
    frameworks = ", ".join(SHOWN[name] for name in document["frameworks"])
    paper.print(f"{document['kind']}; {document['family']}; concerns {frameworks}", style="dim")
    for line in lines_of(remedy)[:1] if remedy else ():
        paper.print(f"do first: {line}", style="bold")
    _section(paper, "Why", [one_line(document["cause"])])
    for paragraph in document["detail"].split("\n\n") if document["detail"] else []:
        paper.print()
        _section(paper, "", [one_line(paragraph)])
    _section(paper, "Where", [_where(claim) for claim in document["affected"]])
    if document["signature"]:
        _section(paper, "How it looks in a log", [f"/{one}/" for one in document["signature"]["any"]])
    if document.get("audit"):
        _section(paper, "What audit calls it", [", ".join(document["audit"])])
    if document["triggers"]:
        _section(paper, "How it comes about", [_trigger(one) for one in document["triggers"]])
    paper.print()
    paper.print("What to change", style="bold")
    by_name = {mitigation["name"]: mitigation for mitigation in document["mitigations"]}
    for name in (*document["offered"], *document["does_not_help"]):
        _mitigation(paper, by_name[name])
    _section(paper, "References", [f"{one['ref']}: {one['about']}" for one in document["references"]])


def render_found(
    text: str, found_by: str, explained: Iterable[tuple[Mapping[str, Any], Remedy | None]], stream: TextIO
) -> None:
    """Writes the codes of a text, three lines each: what, what to do first, where the rest is.

    Args:
        text: What was typed.
        found_by: `printed` where entries know it as what a failure prints, `near` where words are alike.
        explained: Each code's document and what is done about it.
        stream: Where it goes.
    """
    paper = Paper(stream)
    every = list(explained)
    codes = ", ".join(document["code"] for document, _ in every)
    told = f"printed by {codes}" if found_by == "printed" else "no code; near it by words"
    paper.print(f"{shorten(mask(text), _LONG, placeholder=' …')}: {told}", style="bold", whole=True)
    for document, remedy in every:
        paper.print()
        paper.print(
            f"{document['code']}  {document['title']}  ({document['kind']})", style="bold", whole=True
        )
        for line in lines_of(remedy)[:1] if remedy else ():
            paper.print(f"        * {shorten(line, _LONG, placeholder=' …')}", whole=True)
        paper.print(f"        explain {document['code']} tells more", style="dim", whole=True)


def _where(claim: Mapping[str, Any]) -> str:
    looked = f", looked at up to {claim['looked_to']}" if claim["looked_to"] else ""
    releases = claim["versions"] or ", ".join(claim["releases"])
    return f"{claim['package']} {releases}{looked} ({claim['evidence']}): {claim['source']}"


def _trigger(one: Mapping[str, Any]) -> str:
    versions = f" ({one['versions']})" if one["versions"] else ""
    return f"{one['name']}{versions}: {one['about']}"


def _section(paper: Paper, title: str, lines: list[str]) -> None:
    if title:
        paper.print()
        paper.print(title, style="bold")
    for line in lines:
        paper.print(line, indent=2)


def _mitigation(paper: Paper, mitigation: Mapping[str, Any]) -> None:
    verdict, style = _verdict(mitigation)
    paper.print([(f"  {mitigation['name']}", ""), (f"  {verdict}", style)], "bold")
    lines = [mitigation["about"]]
    if mitigation["note"]:
        lines.append(mitigation["note"])
    if mitigation["helps"]:
        lines.append(f"helped against: {', '.join(mitigation['helps'])}")
    if mitigation["fails"]:
        lines.append(f"did not help against: {', '.join(mitigation['fails'])}")
    lines += [f"{framework}: {edit}" for framework, edit in edits_of(mitigation)]
    lines.append(f"cost: {mitigation['cost']}")
    for line in lines:
        paper.print(line, indent=6)


def edits_of(mitigation: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The edits of a mitigation, each under its framework, with the releases that have its words where not all do."""
    bounds = mitigation["bounds"] or [{"versions": ""}] * len(mitigation["edits"])
    for (name, edit), bound in zip(mitigation["edits"], bounds, strict=True):
        yield f"{SHOWN[name]} {bound['versions']}".rstrip(), edit


def _verdict(mitigation: Mapping[str, Any]) -> tuple[str, str]:
    """What a run showed of a mitigation, or that none has been made; and the colour for it."""
    helps, fails = mitigation["helps"], mitigation["fails"]
    if mitigation["evidence"] != "executed":
        return f"not run ({mitigation['evidence']} only)", "yellow"
    if not fails:
        return "helps (shown by a run)", "green"
    if helps:
        return "does NOT help in every case (shown by a run)", "yellow"
    return "does NOT help (shown by a run)", "red"
