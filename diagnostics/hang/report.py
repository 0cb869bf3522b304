"""Render diagnoses for the terminal, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from diagnostics.findings import CheckResult, Finding, NotChecked, Report
from diagnostics.fixes import count_of
from diagnostics.hang import picture
from diagnostics.hang.diagnosis import Diagnosis
from diagnostics.hang.document import Members, document_of, group_name, same_place_groups, stack_tree
from diagnostics.hang.known_issues import finding_of
from diagnostics.output import prepare
from diagnostics.output.html import render_page
from diagnostics.output.report_output import ReportOptions, print_report
from diagnostics.output.terminal import print_finding, print_text

MIN_GROUPS = 3
"""Groups of processes on the first screen, however much stands above them."""
_HEADINGS = {
    "hang": ("HANG", "bold red"), "waiting": ("WAITING", "yellow"), "progress": ("no hang", "green"),
    "idle": ("no hang", "green"), "unknown": ("UNKNOWN", "bold yellow"),
}  # fmt: skip
SECTIONS = (("Observed", "evidence"), ("Excluded", "excluded"), ("Not checked", "unseen"), ("Next", "next"))


@dataclass(frozen=True)
class HangReport:
    """The documents of all jobs, the worst first, with the finding of each."""

    documents: tuple[dict[str, Any], ...]
    findings: tuple[Finding | None, ...] = ()
    stacks: bool = False

    def document(self, _report: Report) -> dict[str, Any]:
        """Return the published document of the worst job; its notes list the other jobs."""
        worst, *rest = self.documents
        notes = [*worst["notes"], *(f"another job: {document['sentence']}" for document in rest)]
        shared: dict[str, Any] = prepare.for_sharing(worst | {"notes": notes})
        for process in shared["processes"]:
            # The number that a host has in this report is no name.
            process["host"] = process["key"].rpartition("/")[0]
        return shared

    def template(self) -> str:
        """Return the Markdown template."""
        return "hang.md.j2"

    def render(self, _report: Report, console: Console, *, verbose: bool) -> None:
        """Print all jobs on a terminal."""
        for place, (document, finding) in enumerate(zip(self.documents, self.findings, strict=True)):
            if place:
                console.print()
            _print_job(console, document, finding, verbose=verbose or self.stacks, stacks=self.stacks)

    # For the template.
    sections = SECTIONS
    groups = staticmethod(same_place_groups)
    group_name = staticmethod(group_name)
    stack_tree = staticmethod(stack_tree)


def build_report(diagnoses: Sequence[Diagnosis], *, stacks: bool = False) -> Report:
    """Return the report of all jobs."""
    findings = tuple(finding_of(diagnosis) for diagnosis in diagnoses)
    documents = tuple(document_of(diagnosis) for diagnosis in diagnoses)
    not_checked = [NotChecked("hang", text) for diagnosis in diagnoses for text in diagnosis.verdict.unseen]
    check = CheckResult.of("hang", [finding for finding in findings if finding], not_checked)
    return Report("hang", {}, (check,), extra=HangReport(documents, findings, stacks))


def print_hang_report(report: Report, form: str, *, verbose: bool) -> None:
    """Write a report to standard output in one of the formats."""
    if form == "html":
        print(html_page(report), end="")
    else:
        print_report(report, ReportOptions(form, verbose=verbose))


# Terminal.


def _print_job(
    console: Console, document: dict[str, Any], finding: Finding | None, *, verbose: bool, stacks: bool
) -> None:
    word, style = _HEADINGS[document["outcome"]]
    code = f"  {document['code']}" if document["code"] else ""
    certainty = f"  {document['certainty']}" if document["outcome"] == "hang" else ""
    print_text(console, Text(word, style) + Text(code, "bold") + Text(certainty, "dim"))
    print_text(console, document["sentence"], indent=2)
    if verbose:
        _print_everything(console, document, finding, stacks=stacks)
    else:
        _print_first_screen(console, document, finding)


def _print_first_screen(console: Console, document: dict[str, Any], finding: Finding | None) -> None:
    """Print the fix, who is blocked where, and what was not checked."""
    if finding:
        console.print()
        print_finding(console, finding)
    elif fix := document["helps"].get("fix"):
        print_text(console, f"Fix: {fix}", indent=2)
    if document["outcome"] == "unknown":
        _print_chain(console, document, evidence=False)
    for command in document["next"][:1]:
        print_text(console, f"Next: {command}", indent=2)
    console.print()
    groups = same_place_groups(document)
    room = max(MIN_GROUPS, console.height - 16) if console.is_terminal else len(groups)
    for text, members in groups[:room]:
        _print_group(console, document, text, members)
    if len(groups) > room:
        print_text(console, f"  and {len(groups) - room} more groups", "dim")
    for text in document["unseen"][:2]:
        print_text(console, f"not checked: {text}", "dim")
    if len(document["unseen"]) > 2:
        print_text(console, f"{len(document['unseen']) - 2} more not checked", "dim")
    print_text(console, f"{_observed(document)}; --verbose shows everything", "dim")


def _print_everything(
    console: Console, document: dict[str, Any], finding: Finding | None, *, stacks: bool
) -> None:
    if document["chain"]:
        console.print()
        _print_chain(console, document, evidence=True)
    if finding:
        console.print()
        print_finding(console, finding, verbose=True)
    print_text(console, "\nAll processes:", "bold")
    for text, members in same_place_groups(document):
        _print_group(console, document, text, members, indent=2)
    for title, key in (*SECTIONS, ("Notes", "notes")):
        _print_section(console, title, document[key])
    if stacks:
        _print_section(console, "Stacks, outermost first", stack_tree(document))
    print_text(console, _observed(document), "dim")


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


def _print_group(
    console: Console, document: dict[str, Any], text: str, members: Members, indent: int = 0
) -> None:
    mark = "▶ " if _blocks(document, members) else "  "
    print_text(console, f"{mark}{group_name(members)}: {text}", indent=indent)


def _blocks(document: dict[str, Any], members: Members) -> bool:
    """Return whether one of the processes blocks the job."""
    keys = {process["key"] for process in members}
    return document["outcome"] == "hang" and not keys.isdisjoint(document["culprits"])


def _observed(document: dict[str, Any]) -> str:
    count = count_of(len(document["processes"]), "process")
    if document["source"] != "live":
        return f"read from: {document['source']}; {count}; processes outside it were not checked"
    return (
        f"{count} observed for {document['watched_s']:g} s; nothing was stopped, no local variable was read"
    )


# HTML.


def html_page(report: Report) -> str:
    """Return a self-contained page of the worst job."""
    extra = prepare.for_screen(report).extra
    assert isinstance(extra, HangReport)
    document = extra.document(report)
    groups = [
        (group_name(members), text, _blocks(document, members))
        for text, members in same_place_groups(document)
    ]
    return render_page(
        "hang.html.j2",
        title=f"hang: {document['outcome']} {document['code']}".strip(),
        document=document,
        names={process["key"]: process["label"] for process in document["processes"]},
        picture=picture.draw(document),
        box=(picture.WIDTH, picture.HEIGHT),
        sections=SECTIONS,
        groups=groups,
        stacks="\n".join(stack_tree(document)),
    )
