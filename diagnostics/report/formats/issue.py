"""A known issue, explained."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from diagnostics.catalogue import model

if TYPE_CHECKING:
    from typing import TextIO

    from diagnostics.catalogue.model import Affected, CheckCode, Issue, Mitigation, Occasion
    from diagnostics.report.remedies import Remedy


def as_json(issue: Issue, remedy: Remedy) -> str:
    """The entry as one JSON document, with the names of its mitigations in the order in which they are offered."""
    document = {
        "schema": "grpo-doctor.issue.v1",
        **asdict(issue),
        "offered": [offer.mitigation for offer in remedy.offers],
        "does_not_help": [offer.mitigation for offer in remedy.does_not_help],
    }
    return json.dumps(document, indent=1, ensure_ascii=False)


def check_as_json(entry: CheckCode) -> str:
    """A check's own code as a document with the keys of an issue's; what it has none of is empty."""
    document: dict[str, Any] = {
        "schema": "grpo-doctor.issue.v1", "code": entry.code, "title": entry.title, "kind": "check", "status": "check",
        "since": "", "components": [], "frameworks": [], "cause": entry.about, "detail": "", "affected": [],
        "signature": None, "config": [], "mitigations": [], "references": [],
    }  # fmt: skip
    return json.dumps(document, indent=1, ensure_ascii=False)


def check(entry: CheckCode) -> str:
    """What a finding under a check's own code says."""
    return f"{entry.code}  {entry.title}\n\n{entry.about}"


def render(issue: Issue, remedy: Remedy, stream: TextIO) -> None:
    """Writes what it is, why it happens, what helps, the first offer first, and how all that is known."""
    console = Console(file=stream, highlight=False)
    family = model.FAMILIES[issue.code[:3]]
    console.print(Text(f"{issue.code}  {issue.title}", style="bold"))
    frameworks = ", ".join(model.FRAMEWORKS[name] for name in issue.frameworks)
    console.print(Text(f"{issue.kind}; {family}; concerns {frameworks}", style="dim"))
    _section(console, "Why", [" ".join(issue.cause.split())])
    for paragraph in issue.detail.split("\n\n") if issue.detail else []:
        console.print()
        _section(console, "", [" ".join(paragraph.split())])
    _section(
        console,
        "Where",
        [
            f"{a.package} {a.versions or ', '.join(a.releases)}{_looked(a)} ({a.evidence}): {a.source}"
            for a in issue.affected
        ],
    )
    if issue.signature:
        _section(console, "How it looks in a log", [f"/{pattern}/" for pattern in issue.signature.any])
    if issue.triggers:
        told = [f"{trigger.name}{_where(trigger)}: {trigger.about}" for trigger in issue.triggers]
        _section(console, "How it comes about", told)
    console.print()
    console.print(Text("What to change", style="bold"))
    by_name = {mitigation.name: mitigation for mitigation in issue.mitigations}
    for offer in (*remedy.offers, *remedy.does_not_help):
        _mitigation(console, by_name[offer.mitigation])
    _section(console, "References", [f"{reference.ref}: {reference.about}" for reference in issue.references])


def _looked(claim: Affected) -> str:
    return f", looked at up to {claim.looked_to}" if claim.looked_to else ""


def _where(trigger: Occasion) -> str:
    return f" ({trigger.versions})" if trigger.versions else ""


def _section(console: Console, title: str, lines: list[str]) -> None:
    if title:
        console.print()
        console.print(Text(title, style="bold"))
    for line in lines:
        console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))


def _mitigation(console: Console, mitigation: Mitigation) -> None:
    style = (
        "green"
        if mitigation.helps and not mitigation.fails
        else "red"
        if verdict_of(mitigation) == NEVER
        else "yellow"
    )
    head = Text(f"  {mitigation.name}", style="bold").append(f"  {verdict_of(mitigation)}", style=style)
    console.print(head)
    lines = [mitigation.about]
    if mitigation.note:
        lines.append(mitigation.note)
    if mitigation.helps:
        lines.append(f"helped against: {', '.join(mitigation.helps)}")
    if mitigation.fails:
        lines.append(f"did not help against: {', '.join(mitigation.fails)}")
    lines += [f"{model.FRAMEWORKS[key]}: {edit}" for key, edit in mitigation.edits]
    lines.append(f"cost: {mitigation.cost}")
    for line in lines:
        console.print(Padding(Text(line), (0, 0, 0, 6), expand=False))


NEVER = "does NOT help (shown by a run)"


def verdict_of(mitigation: Mitigation) -> str:
    """What a run showed of a mitigation, or that none has been made."""
    if mitigation.evidence != "executed":
        return f"not run ({mitigation.evidence} only)"
    if not mitigation.fails:
        return "helps (shown by a run)"
    return "does NOT help in every case (shown by a run)" if mitigation.helps else NEVER
