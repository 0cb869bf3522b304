"""Render diagnoses for the terminal, JSON and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from diagnostics.findings import CheckResult, Extra, Finding, NotChecked, Report
from diagnostics.fixes import count_of
from diagnostics.hang.diagnosis import Diagnosis
from diagnostics.hang.document import document_of, group_name, same_place_groups, stack_lines
from diagnostics.hang.known_issues import finding_of
from diagnostics.output import prepare
from diagnostics.output.terminal import print_finding, print_text

MIN_GROUPS = 3
"""Minimum number of process groups on the first screen, even on a small terminal."""
_HEADINGS = {
    "hang": ("HANG", "bold red"), "waiting": ("WAITING", "yellow"), "progress": ("no hang", "green"),
    "idle": ("no hang", "green"), "unknown": ("UNKNOWN", "bold yellow"),
}  # fmt: skip
SECTIONS = (("Observed", "evidence"), ("Excluded", "excluded"), ("Not checked", "unseen"), ("Next", "next"))


@dataclass(frozen=True)
class HangReport(Extra):
    """The documents of all jobs, the worst first, and the finding of each."""

    documents: tuple[dict[str, Any], ...]
    findings: tuple[Finding | None, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the document of the worst job; its notes list the other jobs."""
        worst, *rest = self.documents
        notes = [*worst["notes"], *(f"another job: {document['sentence']}" for document in rest)]
        shared: dict[str, Any] = prepare.for_sharing(worst | {"notes": notes})
        for process in shared["processes"]:
            # The key has the host's number in this report, which is not its name.
            process["host"] = process["key"].rpartition("/")[0]
        return shared

    def render(self, _report: Report, console: Console, *, verbose: bool) -> None:
        """Print all jobs on a terminal."""
        for place, (document, finding) in enumerate(zip(self.documents, self.findings, strict=True)):
            if place:
                console.print()
            _print_verdict(console, document)
            (_print_everything if verbose else _print_first_screen)(console, document, finding)
            more = "" if verbose else "; --verbose shows everything"
            print_text(console, f"{_observed(document)}{more}", "dim")

    template = "hang.md.j2"
    # For the template.
    sections = SECTIONS
    groups = staticmethod(same_place_groups)
    group_name = staticmethod(group_name)
    stack_lines = staticmethod(stack_lines)


def build_report(diagnoses: Sequence[Diagnosis]) -> Report:
    """Return the report of all jobs."""
    findings = tuple(finding_of(diagnosis) for diagnosis in diagnoses)
    documents = tuple(document_of(diagnosis) for diagnosis in diagnoses)
    not_checked = [NotChecked("hang", text) for diagnosis in diagnoses for text in diagnosis.verdict.unseen]
    check = CheckResult.of("hang", [finding for finding in findings if finding], not_checked)
    return Report("hang", {}, (check,), extra=HangReport(documents, findings))


def _print_verdict(console: Console, document: dict[str, Any]) -> None:
    heading = Text(*_HEADINGS[document["outcome"]])
    if document["code"]:
        heading.append(f"  {document['code']}", "bold")
    if document["outcome"] == "hang":
        heading.append(f"  {document['certainty']}", "dim")
    print_text(console, heading)
    print_text(console, document["sentence"], indent=2)


def _print_first_screen(console: Console, document: dict[str, Any], finding: Finding | None) -> None:
    """Print the fix, the place at which each process is blocked, and the processes that were not checked."""
    if finding:
        console.print()
        print_finding(console, finding)
    elif fix := document["helps"].get("fix"):
        label = "If the wait does not end" if document["outcome"] == "waiting" else "Fix"
        print_text(console, f"{label}: {fix}", indent=2)
    if document["outcome"] == "unknown":
        _print_chain(console, document, evidence=False)
    for command in document["next"][:1]:
        print_text(console, f"Next: {command}", indent=2)
    console.print()
    groups = _group_lines(document)
    room = max(MIN_GROUPS, console.height - 16) if console.is_terminal else len(groups)
    for line in groups[:room]:
        print_text(console, line)
    if len(groups) > room:
        print_text(console, f"  and {len(groups) - room} more groups", "dim")
    for text in document["unseen"][:2]:
        print_text(console, f"not checked: {text}", "dim")
    if len(document["unseen"]) > 2:
        print_text(console, f"{len(document['unseen']) - 2} more not checked", "dim")


def _print_everything(console: Console, document: dict[str, Any], finding: Finding | None) -> None:
    if document["chain"]:
        console.print()
        _print_chain(console, document, evidence=True)
    if finding:
        console.print()
        print_finding(console, finding, verbose=True)
    _print_section(console, "All processes", _group_lines(document))
    for title, key in (*SECTIONS, ("Notes", "notes")):
        _print_section(console, title, document[key])
    _print_section(console, "Stacks, innermost frame first", stack_lines(document))


def _print_chain(console: Console, document: dict[str, Any], *, evidence: bool) -> None:
    names = {process["key"]: process["label"] for process in document["processes"]}
    for depth, edge in enumerate(document["chain"]):
        indent = 2 + 2 * min(depth, 6)
        uncertain = "" if edge["certain"] else "  (inferred: the only candidate left)"
        source = names.get(edge["source"], edge["source"])
        print_text(console, f"{source} {edge['text']} {edge['label']}{uncertain}", indent=indent)
        for line in edge["evidence"] if evidence else ():
            print_text(console, line, "dim", indent=indent + 4)


def _print_section(console: Console, title: str, lines: Sequence[str]) -> None:
    if lines:
        console.print()
        print_text(console, f"{title}:", "bold")
    for line in lines:
        print_text(console, line, indent=2)


def _group_lines(document: dict[str, Any]) -> list[str]:
    """Return a line for each group of processes; a mark shows the group with a blocking process."""
    blocking = document["culprits"] if document["outcome"] == "hang" else ()
    return [
        f"{'▶' if any(member['key'] in blocking for member in members) else ' '} {group_name(members)}: {place}"
        for place, members in same_place_groups(document)
    ]


def _observed(document: dict[str, Any]) -> str:
    count = count_of(len(document["processes"]), "process")
    if document["source"] != "live":
        return f"read from: {document['source']}; {count}; processes outside it were not checked"
    return (
        f"{count} observed for {document['watched_s']:g} s; nothing was stopped, no local variable was read"
    )
