"""What was found out about a fleet, as one report like doctor's own."""

from __future__ import annotations

import re
import traceback
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from diagnostics.catalog.own_codes import finding
from diagnostics.doctor import examine as doctor
from diagnostics.doctor.fleet.compare import differences
from diagnostics.frameworks import PACKAGES
from diagnostics.output.findings import CheckResult, Evidence, NotJudged, Report, Severity
from diagnostics.output.personal import strip
from diagnostics.output.remedies import Remedy, each_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from diagnostics.catalog.model import Issue
    from diagnostics.collect.compat import Compat
    from diagnostics.doctor.fleet.nodes import Node
    from diagnostics.output.findings import Finding


def examine_fleet(nodes: list[Node], issues: dict[str, Issue], compat: Compat, note: str = "") -> Report:
    """Judges every node that answered, and compares them; those that did not are named, and never ok.

    Args:
        nodes: In their order.
        issues: The catalogue.
        compat: The compatibility table.
        note: What the reader has to know of how the nodes were reached.
    """
    seen = [node for node in nodes if node.facts]
    checks = [_reached(node) for node in nodes]
    if len(seen) < 2:
        checks.append(
            CheckResult("differences between nodes", "skipped", f"{len(seen)} of {len(nodes)} answered")
        )
    else:
        checks.append(_run("differences between nodes", lambda: differences(nodes)))
    checks.append(
        _alone("each node by itself", seen, issues, compat)
        if seen
        else CheckResult("each node by itself", "skipped", "no node answered")
    )
    return Report("doctor", _subject(nodes, seen), tuple(checks), tuple(filter(None, (*_notes(nodes), note))))


# What to do of a host, and of a node of Ray's, to which no command of ours leads.
_AGAIN = (
    "Try by hand what gets in: `ssh HOST python3`, or the words of --host-command; --node-limit is for a host that is"
    " slow, --host-python for one whose Python is elsewhere.",
    "Look at what Ray says of it (`ray status`, `ray list nodes`) and at its logs there; where it did not answer in"
    " time, --node-limit gives the task on it more.",
)
# Of one that was reached and said itself what is the matter.
_THERE = (
    "Mend there what it says. --prefix names the environment that is examined, --host-python the Python that does it.",
    "Mend there what it says. --prefix names the environment that is examined; what does it is the Python of Ray's"
    " workers.",
)


def _reached(node: Node) -> CheckResult:
    name = f"reaching {node.label}"
    if not node.problem:
        return CheckResult(name, "ok")
    code = "RAY951" if node.dead else "NET951"
    told = finding(
        code,
        Severity.WARNING,
        known_by="executed",
        detail=f"{node.label}: {node.problem}. What is on it is unknown.",
        evidence=(Evidence(node.problem, node.label),),
        remedy=Remedy.of(
            "Where it is still wanted, start it again: `ray start --address=...` on it."
            if node.dead
            else (_THERE if node.reached else _AGAIN)[node.word == "node"]
        ),
    )
    return CheckResult(name, "crashed", node.problem, (told,))


def _alone(name: str, nodes: list[Node], issues: dict[str, Issue], compat: Compat) -> CheckResult:
    """What doctor says of each node, and what it could not judge there; the same words of several are said once."""
    found: dict[tuple[str, str], tuple[Finding, list[Node]]] = {}
    unread: dict[tuple[str, str, bool], tuple[NotJudged, list[Node]]] = {}
    crashed = []
    for node in nodes:
        assert node.facts
        report = doctor.examine(node.facts.environment, issues, compat, node.facts.machine)
        for item in report.findings:
            key = (item.code, _without_prefix(item.detail, node))
            found.setdefault(key, (item, []))[1].append(node)
        for check in report.checks:
            if check.outcome == "crashed":
                crashed.append(f"{node.label}: {check.check}: {check.reason}")
            for each in check.not_judged:
                which = (each.what, _without_prefix(each.why, node), each.decides)
                unread.setdefault(which, (each, []))[1].append(node)
    result = CheckResult.of(
        name,
        [_named(item, members, len(nodes)) for item, members in found.values()],
        [_open(each, members, len(nodes)) for each, members in unread.values()],
    )
    return replace(result, outcome="crashed", reason="; ".join(crashed)) if crashed else result


def _without_prefix(text: str, node: Node) -> str:
    return text.replace(node.facts.environment.prefix, "") if node.facts else text


def _named(item: Finding, members: list[Node], total: int) -> Finding:
    evidence = tuple(Evidence(one.text, f"{members[0].label}: {one.place}") for one in item.evidence)
    return replace(item, detail=f"{_who(members, total)}: {item.detail.strip()}", evidence=evidence)


def _open(each: NotJudged, members: list[Node], total: int) -> NotJudged:
    place = f"{members[0].label}: {each.place}" if each.place else ""
    return replace(each, what=f"{_who(members, total)}: {each.what}", place=place)


def _who(members: list[Node], total: int) -> str:
    if len(members) == total:
        return "The node that answered" if total == 1 else f"All {total} nodes that answered"
    return ", ".join(node.label for node in members)


def _subject(nodes: list[Node], seen: list[Node]) -> dict[str, Any]:
    facts = [node.facts for node in seen if node.facts]
    packages = {}
    for name in PACKAGES:
        counts = Counter(version for one in facts if (version := one.environment.version(name)))
        if counts:
            packages[name] = " / ".join(version for version, _ in counts.most_common())
    pythons = Counter(one.environment.python for one in facts)
    return {
        "prefix": f"{len(seen)} of {len(nodes)} nodes",
        "python": " / ".join(version for version, _ in pythons.most_common()) or "not known",
        "packages": packages,
        "nodes": [
            {
                "node": node.label,
                "outcome": "answered" if node.facts else "dead" if node.dead else "unknown",
                "problem": node.problem,
            }
            for node in nodes
        ],
    }


def _notes(nodes: list[Node]) -> list[str]:
    unseen = [node.label for node in nodes if not node.facts]
    told = ["static: read from package metadata, the machine and its limits; nothing was imported"]
    if unseen:
        told.append(f"not examined, so unknown: {', '.join(unseen)}")
    return told


def _run(name: str, check: Callable[[], list[Finding]]) -> CheckResult:
    try:
        found = check()
    except Exception as error:  # noqa: BLE001 - a check that crashes is a result
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
        return CheckResult(name, "crashed", f"{type(error).__name__}: {error} ({place}); please report it")
    return CheckResult(name, "findings" if found else "ok", "", tuple(found))


def shareable(report_of: Callable[[list[Node]], Report], nodes: list[Node]) -> Report:
    """The report with numbers in place of names, in every text of it.

    Args:
        report_of: Makes the report of nodes.
        nodes: With their names.
    """
    names: dict[str, str] = defaultdict(str)
    for node in nodes:
        for word in (node.name, *node.secrets, node.facts.machine.host if node.facts else ""):
            if len(word) > 1 and word != "localhost" and not word.startswith("127."):
                names.setdefault(word, f"<{node.word} {node.number}>")
    words = sorted(names, key=len, reverse=True)
    pattern = (
        re.compile("|".join(rf"(?<![\w.-]){re.escape(word)}(?![\w-])" for word in words)) if words else None
    )

    def hide(text: str) -> str:
        return strip(pattern.sub(lambda match: names[match[0]], text) if pattern else text)

    report = report_of([replace(node, name="", problem=hide(node.problem)) for node in nodes])
    return _each_text(report, hide)


def _each_text(report: Report, change: Callable[[str], str]) -> Report:
    checks = tuple(
        replace(
            check,
            reason=change(check.reason),
            findings=tuple(_changed(one, change) for one in check.findings),
            not_judged=tuple(_open_changed(one, change) for one in check.not_judged),
        )
        for check in report.checks
    )
    nodes = [{**node, "problem": change(node["problem"])} for node in report.subject["nodes"]]
    return replace(
        report,
        checks=checks,
        subject={**report.subject, "nodes": nodes},
        notes=tuple(map(change, report.notes)),
    )


def _open_changed(each: NotJudged, change: Callable[[str], str]) -> NotJudged:
    return NotJudged(
        change(each.what), change(each.why), change(each.remedy), change(each.place), decides=each.decides
    )


def _changed(item: Finding, change: Callable[[str], str]) -> Finding:
    remedy = item.remedy
    return replace(
        item,
        detail=change(item.detail),
        evidence=tuple(Evidence(change(one.text), change(one.place)) for one in item.evidence),
        remedy=each_text(remedy, change) if remedy else None,
    )
