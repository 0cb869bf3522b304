"""Build doctor's report on the nodes of a job: which answered, how they differ, and the findings of the checks.

`report_on_nodes` returns the report. The nodes were queried by `node_query`; the static checks run here, on the facts
of each node that answered.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from diagnostics.catalog.model import Issue
from diagnostics.compat_table import Compat
from diagnostics.doctor import run_checks
from diagnostics.doctor.checks.registry import finding
from diagnostics.doctor.node_differences import differences
from diagnostics.doctor.node_query import Node, node_names
from diagnostics.findings import CheckResult, Evidence, Finding, NotChecked, Report, Severity
from diagnostics.fixes import Advice, Explain, Fix, ShellCommand
from diagnostics.frameworks import PACKAGES


def report_on_nodes(nodes: list[Node], issues: dict[str, Issue], compat: Compat, note: str = "") -> Report:
    """Check and compare the nodes that answered, and report why the others did not; `note` is added to the notes."""
    no_nodes = CheckResult.of("reaching the nodes", (), [NotChecked("the nodes", "the cluster lists none")])
    checks = (
        *(map(_reach_result, nodes) if nodes else [no_nodes]),
        run_checks.run_check("differences between nodes", differences(nodes)),
        _findings_by_node([node for node in nodes if node.facts], issues, compat),
    )
    missing = ", ".join(node.label for node in nodes if not node.facts)
    notes = (
        "static: read from package metadata, the machine and its limits; nothing was imported",
        f"not examined, so unknown: {missing}" if missing else "", note,
    )  # fmt: skip
    return Report("doctor", _subject(nodes), checks, tuple(filter(None, notes)))


def _subject(nodes: list[Node]) -> dict[str, Any]:
    """Return the report's subject: the nodes, and the releases of Python and packages on those that answered."""
    environments = [node.facts.environment for node in nodes if node.facts]

    def join(values: Iterable[str | None]) -> str:
        return " / ".join(value for value, _ in Counter(values).most_common() if value)

    packages = {name: join(item.version(name) for item in environments) for name in PACKAGES}
    return {
        "prefix": f"{len(environments)} of {len(nodes)} nodes",
        "python": join(item.python for item in environments) or "unknown",
        "packages": {name: versions for name, versions in packages.items() if versions},
        "nodes": [{"node": node.label, "problem": node.problem, "outcome": node.outcome} for node in nodes],
    }


def _reach_result(node: Node) -> CheckResult:
    """Return the result of reaching a node: ok, else unread with RAY951 (dead) or NET951."""
    name = f"reaching {node.label}"
    if not node.problem:
        return CheckResult(name, "ok")
    code, advice = "NET951", "Try it by hand, such as `ssh HOST python3`. Raise --node-limit for a slow node."
    if node.dead:
        code, advice = "RAY951", "If it is still wanted, start it again: `ray start --address=...` on it."
    evidence = [Evidence(node.problem, node.label)]
    detail = f"{node.label}: {node.problem}. What is on it is unknown."
    missing = finding(code, Severity.WARNING, evidence, Fix.of(advice), detail, known_by="executed")
    return CheckResult(name, "crashed", node.problem, (missing,), reads=True)


def _findings_by_node(nodes: list[Node], issues: dict[str, Issue], compat: Compat) -> CheckResult:
    """Return doctor's findings and unchecked items on the nodes; one that several nodes share is reported once.

    A check that crashed on a node is an unchecked item.
    """
    name = "each node by itself"
    if not nodes:
        return CheckResult(name, "skipped", "no node answered")
    shared: dict[tuple[str, ...], tuple[Finding | NotChecked, list[Node]]] = {}
    for node in nodes:
        assert node.facts
        prefix = node.facts.environment.prefix
        report = run_checks.examine(node.facts.environment, issues, compat, node.facts.machine)
        crashed = (NotChecked(it.check, it.reason) for it in report.checks if it.outcome == "crashed")
        not_judged = (entry for check in report.checks for entry in check.not_judged)
        for item in map(_without_commands, report.findings):
            key = item.code, item.title, item.detail.replace(prefix, "")
            shared.setdefault(key, (item, []))[1].append(node)
        for entry in (*crashed, *not_judged):
            key = entry.what, entry.why.replace(prefix, ""), str(entry.decides)
            shared.setdefault(key, (entry, []))[1].append(node)
    results = [_name_nodes(item, members, len(nodes)) for item, members in shared.values()]
    findings = (item for item in results if isinstance(item, Finding))
    return CheckResult.of(name, findings, (item for item in results if isinstance(item, NotChecked)))


def _without_commands(item: Finding) -> Finding:
    """Return a finding without commands: the node's untrusted answer has chosen their words."""
    kept = tuple(it for it in item.actions if isinstance(it, Explain) or not isinstance(it, ShellCommand))
    if item.remedy is None or kept == item.actions:
        return item
    advice = Advice("Run doctor on the node itself: it prints the commands.")
    return replace(item, remedy=replace(item.remedy, actions=(*kept, advice)))


def _name_nodes(item: Finding | NotChecked, nodes: list[Node], total: int) -> Finding | NotChecked:
    """Return a result with its nodes before its text, and with the first of them before its locations."""
    names = node_names(nodes, total)

    def at_first_node(place: str) -> str:
        return f"{nodes[0].label}: {place}" if place else ""

    if isinstance(item, NotChecked):
        return replace(item, what=f"{names}: {item.what}", place=at_first_node(item.place))
    evidence = tuple(replace(entry, place=at_first_node(entry.place)) for entry in item.evidence)
    return replace(item, detail=f"{names}: {item.detail.strip() or item.title}", evidence=evidence)
