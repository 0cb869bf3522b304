"""Build the report of diagnoses, and render it for the terminal, JSON (`grpo-doctor.hang.v1`) and Markdown.

`build_report` returns the report; `HangReport` prints all jobs on a terminal, and returns the redacted document of the
worst job for JSON. Markdown has all jobs. Processes that are blocked at the same place are grouped.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from diagnostics.findings import CheckResult, Extra, Finding, NotChecked, Report
from diagnostics.fixes import count_of, join_some
from diagnostics.hang.blocking_calls import BlockedState, frame_text
from diagnostics.hang.diagnosis import Diagnosis
from diagnostics.hang.known_issues import finding_of, issue_document
from diagnostics.hang.wait_kinds import CAUSES
from diagnostics.output import text_filters
from diagnostics.output.terminal import print_finding, print_text

SCHEMA = "grpo-doctor.hang.v1"
MAX_FRAMES = 12
_MAX_MEMBERS = 6
_PROCESS_FIELDS = ("key", "pid", "ppid", "host", "role", "rank", "label", "state")

Members = list[dict[str, Any]]
_HEADINGS = {
    "hang": ("HANG", "bold red"), "waiting": ("WAITING", "yellow"), "progress": ("no hang", "green"),
    "idle": ("no hang", "green"), "unknown": ("UNKNOWN", "bold yellow"),
}  # fmt: skip
SECTIONS = (("Observed", "evidence"), ("Excluded", "excluded"), ("Not checked", "unseen"), ("Next", "next"))


def document_of(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the document `grpo-doctor.hang.v1` of a diagnosis, not yet redacted."""
    verdict, index = diagnosis.verdict, diagnosis.index
    processes = [state.process for state in index.states.values()]
    processes.sort(key=lambda process: (process.rank is None, process.rank or 0, process.pid))
    return {
        "schema": SCHEMA,
        **asdict(verdict),
        "cause_means": CAUSES[verdict.cause].means if verdict.cause else "",
        "helps": issue_document(diagnosis),
        "processes": [_process_document(index.states[process.key]) for process in processes],
        "edges": [dict(vars(edge)) for edges in diagnosis.graph.values() for edge in edges],
        "watched_s": index.snapshot.seconds,
        "source": index.snapshot.source,
        "notes": list(index.snapshot.notes),
    }


def _process_document(state: BlockedState) -> dict[str, Any]:
    """Return a process with its blocking call, place and stack."""
    process, thread, call = state.process, state.thread, state.call
    frame = call.caller or call.frame
    detail = f" ({call.detail})" if call.detail and state.kind in ("native", "file", "kernel") else ""
    return {
        **{name: getattr(process, name) for name in _PROCESS_FIELDS},
        "pid": None if process.numbered else process.pid,
        "stands": state.kind,
        "text": f"{call.wait.text}{detail}",
        "where": frame_text(frame) if frame else "",
        "frames": [frame_text(item) for item in state.frames[:MAX_FRAMES]],
        "threads": len(process.threads),
        "asleep_s": state.asleep_s,
        "unseen": list(process.unseen),
        "runnable": round(thread.runnable, 2) if thread.runnable is not None else None,
    }


def group_by_place(document: dict[str, Any]) -> list[tuple[str, Members]]:
    """Group processes, except helpers, by the call and place that blocks them, the smallest group first."""
    groups: dict[str, Members] = {}
    for process in document["processes"]:
        if process["role"] != "helper":
            place = f"{process['text']} in {process['where']}" if process["where"] else process["text"]
            groups.setdefault(place, []).append(process)
    return sorted(groups.items(), key=lambda item: (len(item[1]), item[1][0]["pid"] or 0))


def group_name(members: Members) -> str:
    """Name the processes of a group in a few words.

    >>> group_name([{"rank": 0, "role": "trainer", "pid": 7}, {"rank": 2, "role": "trainer", "pid": 9}])
    'ranks 0 (pid 7), 2 (pid 9)'
    """
    if len(members) == 1:
        return str(members[0]["label"])
    roles = {member["role"] for member in members}
    if len(roles) == 1 and all(member["rank"] is not None for member in members):
        names = [f"{m['rank']} (pid {m['pid']})" if m["pid"] else str(m["rank"]) for m in members]
        word = "ranks" if roles == {"trainer"} else f"{members[0]['role']}s"
    elif not all(member["pid"] for member in members):
        return join_some([member["label"] for member in members], _MAX_MEMBERS)
    else:
        names, word = [str(member["pid"]) for member in members], f"{len(members)} processes, pid"
    return f"{word} {join_some(names, _MAX_MEMBERS)}"


def stack_lines(document: dict[str, Any]) -> list[str]:
    """Return the stacks (up to MAX_FRAMES frames) as lines, innermost frame first; equal stacks are listed once."""
    groups: dict[tuple[str, ...], Members] = {}
    for process in document["processes"]:
        groups.setdefault(tuple(process["frames"]), []).append(process)
    lines = []
    for frames, members in groups.items():
        lines += [f"{group_name(members)}:", *(f"  {frame}" for frame in frames or ("no stack",))]
    return lines


@dataclass(frozen=True)
class HangReport(Extra):
    """The documents of all jobs, the worst first, and the finding of each."""

    documents: tuple[dict[str, Any], ...]
    findings: tuple[Finding | None, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the document of the worst job; its notes list the other jobs."""
        worst, *rest = self.documents
        notes = [*worst["notes"], *(f"another job: {document['sentence']}" for document in rest)]
        shared: dict[str, Any] = text_filters.redact_for_sharing(worst | {"notes": notes})
        for process in shared["processes"]:
            # The key has the host's number in this report, which is not its name.
            process["host"] = process["key"].rpartition("/")[0]
        return shared

    def render(self, _report: Report, console: Console, *, verbose: bool) -> None:
        """Print all jobs on a terminal."""
        for number, (document, finding) in enumerate(zip(self.documents, self.findings, strict=True)):
            if number:
                console.print()
            _print_verdict(console, document)
            (_print_everything if verbose else _print_first_screen)(console, document, finding)
            more = "" if verbose else "; --verbose shows everything"
            print_text(console, f"{_observation_line(document)}{more}", "dim")

    template = "hang.md.j2"
    # For the template.
    sections = SECTIONS
    groups = staticmethod(group_by_place)
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
    """Print the fix, the next command, the place at which each process is blocked, and what was not checked.

    If the outcome is unknown, the chain of waits is printed, too.
    """
    if finding:
        console.print()
        print_finding(console, finding)
    elif fix := document["helps"].get("fix"):
        label = "If the wait does not end" if document["outcome"] == "waiting" else "Fix"
        print_text(console, f"{label}: {fix}", indent=2)
    if document["outcome"] == "unknown":
        _print_chain(console, document, evidence=False)
    for command in document["next"][:1]:
        print_text(console, f"Next: {command}", indent=2, whole=True)
    console.print()
    for line in _group_lines(document):
        print_text(console, line)
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
    """Return a line for each group of processes; for a hang, a mark shows the groups with a blocking process."""
    blocking = document["culprits"] if document["outcome"] == "hang" else ()
    return [
        f"{'▶' if any(member['key'] in blocking for member in members) else ' '} {group_name(members)}: {place}"
        for place, members in group_by_place(document)
    ]


def _observation_line(document: dict[str, Any]) -> str:
    """Return the last line: number of processes, and the duration of the observation or the kind of dump."""
    count = count_of(len(document["processes"]), "process")
    if document["source"] != "live":
        return f"read from: {document['source']}; {count}; processes outside it were not checked"
    duration = f"{document['watched_s']:g} s"
    return f"{count} observed for {duration}; nothing was stopped, no local variable was read"
