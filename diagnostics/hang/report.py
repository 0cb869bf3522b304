"""Report diagnoses: the published document, the terminal, Markdown, and a page with the wait graph as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from markupsafe import Markup
from rich.console import Console
from rich.text import Text

from diagnostics.findings import CheckResult, Finding, NotChecked, Report
from diagnostics.fixes import count_of
from diagnostics.hang import picture
from diagnostics.hang.blocking_calls import KINDS, frame_text
from diagnostics.hang.blocking_thread import BlockedState
from diagnostics.hang.diagnosis import Diagnosis
from diagnostics.hang.groups import group_name, same_place_groups, stack_tree
from diagnostics.hang.known_issues import finding_of, issue_document
from diagnostics.hang.verdict import CAUSES
from diagnostics.output import prepare
from diagnostics.output.html import render_page
from diagnostics.output.report_output import ReportOptions, print_report
from diagnostics.output.terminal import print_finding, print_text

SCHEMA = "grpo-doctor.hang.v1"
MAX_FRAMES = 12
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
    sections: tuple[tuple[str, str], ...] = field(default=SECTIONS)

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

    # For the templates.
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


def document_of(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the document `grpo-doctor.hang.v1` of a diagnosis."""
    verdict, index = diagnosis.verdict, diagnosis.index
    states = sorted(index.states.values(), key=_order)
    return {
        "schema": SCHEMA,
        "outcome": verdict.outcome,
        "cause": verdict.cause,
        "cause_means": CAUSES.get(verdict.cause, ""),
        "certainty": verdict.certainty,
        "code": verdict.code,
        "sentence": verdict.sentence,
        "culprits": list(verdict.culprits),
        "victims": list(verdict.victims),
        "cycle": verdict.cycle,
        "waited_s": verdict.waited_s,
        "chain": [_edge_document(edge) for edge in verdict.chain],
        "evidence": list(verdict.evidence),
        "excluded": list(verdict.excluded),
        "unseen": list(verdict.unseen),
        "next": list(verdict.next),
        "helps": issue_document(diagnosis),
        "processes": [_process_document(state) for state in states],
        "edges": [_edge_document(edge) for edges in diagnosis.graph.values() for edge in edges],
        "watched_s": index.snapshot.seconds,
        "source": index.snapshot.source,
        "notes": list(index.snapshot.notes),
    }


def _order(state: BlockedState) -> tuple[int, int, int]:
    process = state.process
    return (0 if process.rank is not None else 1, process.rank or 0, process.pid)


def _edge_document(edge: Any) -> dict[str, Any]:
    return asdict(edge) | {"evidence": list(edge.evidence)}


def _process_document(state: BlockedState) -> dict[str, Any]:
    process, thread = state.process, state.thread
    frame = state.call.caller or state.call.frame
    text = KINDS[state.kind]
    if state.kind in ("native", "file", "kernel") and state.call.detail:
        text = f"{text} ({state.call.detail})"
    return {
        "key": process.key,
        "pid": process.pid,
        "ppid": process.ppid,
        "host": process.host,
        "role": process.role,
        "rank": process.rank,
        "label": process.label,
        "state": process.state,
        "stands": state.kind,
        "text": text,
        "where": frame_text(frame) if frame else "",
        "frames": [frame_text(item) for item in (thread.frames if thread else ())[:MAX_FRAMES]],
        "threads": len(process.threads),
        "asleep_s": state.asleep_s,
        "unseen": list(process.unseen),
        "runnable": round(thread.runnable, 2) if thread and thread.runnable is not None else None,
    }


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
        print_text(console, f"{_mark(document, members)}{group_name(members)}: {text}")
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
    console.print()
    _print_chain(console, document, evidence=True)
    if finding:
        console.print()
        print_finding(console, finding, verbose=True)
    groups = [
        f"{_mark(document, members)}{group_name(members)}: {text}"
        for text, members in same_place_groups(document)
    ]
    _print_section(console, "All processes", groups)
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


def _mark(document: dict[str, Any], members: list[dict[str, Any]]) -> str:
    blocks = document["outcome"] == "hang" and {m["key"] for m in members} & set(document["culprits"])
    return "▶ " if blocks else "  "


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
    drawing, choice = picture.draw(document)
    guilty = set(document["culprits"]) if document["outcome"] == "hang" else set()
    groups = [
        (group_name(members), text, bool({m["key"] for m in members} & guilty))
        for text, members in same_place_groups(document)
    ]
    return render_page(
        "hang.html.j2", title=f"hang: {document['outcome']} {document['code']}".strip(), document=document,
        names={process["key"]: process["label"] for process in document["processes"]},
        drawing=Markup(drawing), choice=Markup(choice),  # noqa: S704 - escaped in `picture`
        sections=SECTIONS, groups=groups, stacks="\n".join(stack_tree(document)),
    )  # fmt: skip
