"""Examine the nodes of a job: reach them, check each by itself, and compare them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from diagnostics.catalog.model import Issue
from diagnostics.compat_table import Compat
from diagnostics.doctor import run_checks
from diagnostics.doctor.checks.base import finding
from diagnostics.doctor.node_differences import differences
from diagnostics.doctor.nodes import Node, node_names
from diagnostics.findings import CheckResult, Evidence, Finding, NotChecked, Report, Severity
from diagnostics.fixes import Fix
from diagnostics.frameworks import PACKAGES
from diagnostics.output.redact import redact

# Fields with fixed words, in which a host's name is a coincidence.
_FIXED_WORDS = {"check", "code", "certainty", "known_by", "outcome", "standing", "tool"}


def examine_fleet(nodes: list[Node], issues: dict[str, Issue], compat: Compat, note: str = "") -> Report:
    """Check every node that answered, and compare them. A node that did not answer is named, and never healthy."""
    answered = [node for node in nodes if node.facts]
    checks = [_reached(node) for node in nodes]
    compared, alone = "differences between nodes", "each node by itself"
    if len(answered) < 2:
        checks.append(CheckResult(compared, "skipped", f"{len(answered)} of {len(nodes)} answered"))
    else:
        checks.append(run_checks.guarded(compared, lambda: CheckResult.of(compared, differences(nodes))))
    if answered:
        checks.append(_each_node(alone, answered, issues, compat))
    else:
        checks.append(CheckResult(alone, "skipped", "no node answered"))
    missing = ", ".join(node.label for node in nodes if not node.facts)
    notes = (
        "static: read from package metadata, the machine and its limits; nothing was imported",
        f"not examined, so unknown: {missing}" if missing else "", note,
    )  # fmt: skip
    return Report("doctor", _subject(nodes, answered), tuple(checks), tuple(filter(None, notes)))


def _reached(node: Node) -> CheckResult:
    name = f"reaching {node.label}"
    if not node.problem:
        return CheckResult(name, "ok")
    missing = finding(
        "RAY951" if node.dead else "NET951", Severity.WARNING, [Evidence(node.problem, node.label)],
        Fix.of(_reach_advice(node)), detail=f"{node.label}: {node.problem}. What is on it is unknown.",
        known_by="executed",
    )  # fmt: skip
    return CheckResult(name, "crashed", node.problem, (missing,))


def _reach_advice(node: Node) -> str:
    of_ray = node.word == "node"
    if node.dead:
        return "If it is still wanted, start it again: `ray start --address=...` on it."
    if node.reached:
        python = (
            "it runs in the Python of Ray's workers"
            if of_ray
            else "--host-python names the Python that runs it"
        )
        return f"Fix there what it reports. --prefix names the examined environment; {python}."
    if of_ray:
        return "Check `ray status`, `ray list nodes` and its logs; for a slow node raise --node-limit."
    return (
        "Try `ssh HOST python3`, or the words of --host-command, by hand. Raise --node-limit for a slow host; set "
        "--host-python for a Python elsewhere."
    )


def _each_node(name: str, nodes: list[Node], issues: dict[str, Issue], compat: Compat) -> CheckResult:
    """Report what doctor finds on each node; the same finding of several nodes is reported once."""
    results: dict[tuple[str, ...], tuple[Finding, list[Node]]] = {}
    missing: dict[tuple[str, ...], tuple[NotChecked, list[Node]]] = {}
    crashed = []
    for node in nodes:
        assert node.facts
        prefix = node.facts.environment.prefix
        report = run_checks.examine(node.facts.environment, issues, compat, node.facts.machine)
        for item in report.findings:
            key = (item.code, item.title, item.detail.replace(prefix, ""))
            results.setdefault(key, (item, []))[1].append(node)
        for check in report.checks:
            if check.outcome == "crashed":
                crashed.append(f"{node.label}: {check.check}: {check.reason}")
            for another in check.not_judged:
                key = (another.what, another.why.replace(prefix, ""), str(another.decides))
                missing.setdefault(key, (another, []))[1].append(node)
    result = CheckResult.of(
        name, [_with_nodes(item, members, len(nodes)) for item, members in results.values()],
        [
            replace(
                item, what=f"{node_names(members, len(nodes))}: {item.what}",
                place=f"{members[0].label}: {item.place}" if item.place else "",
            )
            for item, members in missing.values()
        ],
    )  # fmt: skip
    return replace(result, outcome="crashed", reason="; ".join(crashed)) if crashed else result


def _with_nodes(item: Finding, members: list[Node], total: int) -> Finding:
    evidence = tuple(Evidence(entry.text, f"{members[0].label}: {entry.place}") for entry in item.evidence)
    return replace(
        item, detail=f"{node_names(members, total)}: {item.detail.strip() or item.title}", evidence=evidence
    )


def _subject(nodes: list[Node], answered: list[Node]) -> dict[str, Any]:
    environments = [node.facts.environment for node in answered if node.facts]

    def join(values: list[str | None]) -> str:
        return " / ".join(value for value, _ in Counter(filter(None, values)).most_common() if value)

    packages = {name: join([item.version(name) for item in environments]) for name in PACKAGES}
    outcomes = {
        node.position: "answered" if node.facts else "dead" if node.dead else "unknown" for node in nodes
    }
    return {
        "prefix": f"{len(answered)} of {len(nodes)} nodes",
        "python": join([item.python for item in environments]) or "unknown",
        "packages": {name: versions for name, versions in packages.items() if versions},
        "nodes": [
            {"node": node.label, "outcome": outcomes[node.position], "problem": node.problem} for node in nodes
        ],
    }  # fmt: skip


def shareable_report(report_of: Callable[[list[Node]], Report], nodes: list[Node]) -> Report:
    """Return the report with numbers in place of host names, in every text."""
    names: dict[str, str] = {}
    for node in nodes:
        for word in (node.name, *node.secrets, node.facts.machine.host if node.facts else ""):
            if len(word) > 1 and word != "localhost" and not word.startswith("127."):
                names.setdefault(word, f"<{node.word} {node.number}>")
    words = sorted(names, key=len, reverse=True)
    pattern = (
        re.compile("|".join(rf"(?<![\w.-]){re.escape(word)}(?![\w-])" for word in words)) if words else None
    )

    def hide(text: str) -> str:
        return redact(pattern.sub(lambda match: names[match[0]], text) if pattern else text)

    report: Report = _change_texts(report_of([replace(node, name="") for node in nodes]), hide)
    return report


def _change_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Apply a function to every text but keys and fixed words."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {
            key: item if key in _FIXED_WORDS else _change_texts(item, change) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(_change_texts(item, change) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.name not in _FIXED_WORDS]
        return replace(value, **{name: _change_texts(getattr(value, name), change) for name in names})
    return value
