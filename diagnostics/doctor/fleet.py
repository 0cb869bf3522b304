"""Report on the nodes of a job: which were reached, the differences between them, and the findings of each.

`examine_fleet` builds the report. A difference is a key, such as the NCCL release, for which nodes have different
values: "3 of 4 nodes have NCCL 2.26.2; rank 3 (d) has 2.21.5." `shareable_report` hides the names of the nodes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from diagnostics.catalog.model import Issue
from diagnostics.compat_table import Compat
from diagnostics.doctor import run_checks
from diagnostics.doctor.checks.base import NotApplicableError, finding
from diagnostics.doctor.nodes import ABSENT, VALUE_KINDS, Key, Node, node_names, node_values
from diagnostics.findings import CheckResult, Evidence, Finding, NotChecked, Report, Severity
from diagnostics.fixes import Advice, Fix, join_some
from diagnostics.frameworks import PACKAGES
from diagnostics.output import text_filters

MAX_DIFFERENCES, MAX_VALUES = 16, 12
# Fields with fixed words: if one contains a host's name, it is a coincidence.
_FIXED_WORDS = frozenset({
    ("Finding", "code"), ("Finding", "certainty"), ("Finding", "known_by"), ("CheckResult", "check"),
    ("CheckResult", "outcome"), ("Report", "tool"), ("RankedMitigation", "standing"),
})  # fmt: skip
# The nodes with each value of a key.
Groups = dict[str, list[Node]]
Difference = tuple[Key, Groups]


def examine_fleet(nodes: list[Node], issues: dict[str, Issue], compat: Compat, note: str = "") -> Report:
    """Check and compare the nodes that answered, and report the others as not reached; `note` is added to the notes."""
    checks = (
        *map(_reach_result, nodes),
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
    environments = [node.facts.environment for node in nodes if node.facts]

    def join(values: list[str | None]) -> str:
        return " / ".join(value for value, _ in Counter(filter(None, values)).most_common() if value)

    packages = {name: join([item.version(name) for item in environments]) for name in PACKAGES}
    return {
        "prefix": f"{len(environments)} of {len(nodes)} nodes",
        "python": join([item.python for item in environments]) or "unknown",
        "packages": {name: versions for name, versions in packages.items() if versions},
        "nodes": [{"node": node.label, "problem": node.problem, "outcome": node.outcome} for node in nodes],
    }


def _reach_result(node: Node) -> CheckResult:
    name = f"reaching {node.label}"
    if not node.problem:
        return CheckResult(name, "ok")
    code = "RAY951" if node.dead else "NET951"
    advice = (
        "Try the command by hand (`ssh HOST python3`, the words of --host-command, `ray status`). Raise --node-limit "
        "for a slow node; set --host-python for a Python elsewhere."
    )
    if node.dead:
        advice = "If it is still wanted, start it again: `ray start --address=...` on it."
    elif node.reached:
        advice = "Fix there what it reports. --prefix names the environment, --host-python the Python."
    evidence = [Evidence(node.problem, node.label)]
    detail = f"{node.label}: {node.problem}. What is on it is unknown."
    missing = finding(code, Severity.WARNING, evidence, Fix.of(advice), detail, known_by="executed")
    return CheckResult(name, "crashed", node.problem, (missing,))


def _findings_by_node(nodes: list[Node], issues: dict[str, Issue], compat: Compat) -> CheckResult:
    """Report doctor's findings on each node; a finding that several nodes share is reported once."""
    name = "each node by itself"
    if not nodes:
        return CheckResult(name, "skipped", "no node answered")
    findings: dict[tuple[str, ...], tuple[Finding, list[Node]]] = {}
    open_items: dict[tuple[str, ...], tuple[NotChecked, list[Node]]] = {}
    crashed = []
    for node in nodes:
        assert node.facts
        prefix = node.facts.environment.prefix
        report = run_checks.examine(node.facts.environment, issues, compat, node.facts.machine)
        for item in report.findings:
            key = (item.code, item.title, item.detail.replace(prefix, ""))
            findings.setdefault(key, (item, []))[1].append(node)
        for check in report.checks:
            if check.outcome == "crashed":
                crashed.append(f"{node.label}: {check.check}: {check.reason}")
            for unchecked in check.not_judged:
                key = (unchecked.what, unchecked.why.replace(prefix, ""), str(unchecked.decides))
                open_items.setdefault(key, (unchecked, []))[1].append(node)

    def with_names(members: list[Node], text: str) -> str:
        return f"{node_names(members, len(nodes))}: {text}"

    def at(members: list[Node], place: str) -> str:
        return f"{members[0].label}: {place}" if place else ""

    results = []
    for item, members in findings.values():
        evidence = tuple(replace(entry, place=at(members, entry.place)) for entry in item.evidence)
        detail = with_names(members, item.detail.strip() or item.title)
        results.append(replace(item, detail=detail, evidence=evidence))
    unknown = [
        replace(item, what=with_names(members, item.what), place=at(members, item.place))
        for item, members in open_items.values()
    ]
    result = CheckResult.of(name, results, unknown)
    return replace(result, outcome="crashed", reason="; ".join(crashed)) if crashed else result


def differences(nodes: list[Node]) -> Iterator[Finding]:
    """Yield the differences between the nodes that answered, one finding for each code and severity."""
    answered = [node for node in nodes if node.facts]
    if len(answered) < 2:
        raise NotApplicableError(f"{len(answered)} of {len(nodes)} answered")
    count = len(answered)
    among = f"{count} nodes" if count == len(nodes) else f"the {count} nodes that answered"
    values = {node.position: dict(node_values(node)) for node in answered}
    by_finding: dict[tuple[str, Severity], list[Difference]] = defaultdict(list)
    keys = {key for item in values.values() for key in item}
    for key in sorted(keys, key=lambda key: (list(VALUE_KINDS).index(key[0]), key[1])):
        kind = VALUE_KINDS[key[0]]
        groups: Groups = defaultdict(list)
        for node in answered:
            # Nodes whose value is unknown are in no group.
            if value := values[node.position].get(key, kind.missing):
                groups[value].append(node)
        if len(groups) > 1:
            largest = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1][0].position))
            by_finding[kind.code, kind.severity].append((key, dict(largest)))
    for items in by_finding.values():
        yield _difference_finding(items, count, among)


def _difference_finding(items: list[Difference], total: int, among: str) -> Finding:
    """Return the finding for differences with one code.

    Args:
        items: The differences.
        total: Number of compared nodes.
        among: Text for all compared nodes, such as "4 nodes".
    """
    kind = VALUE_KINDS[items[0][0][0]]
    # Keys with the same groups are joined: another lock file changes fifty packages and is one difference.
    joined: dict[tuple[tuple[int, ...], ...], list[Difference]] = defaultdict(list)
    for key, groups in items:
        positions = tuple(tuple(node.position for node in members) for members in groups.values())
        joined[positions].append((key, groups))
    parts = list(joined.values())
    evidence = [
        Evidence(_values_text(part, position, brief=False), node_names(members))
        for part in parts
        for position, members in enumerate(part[0][1].values())
    ]
    rest = f" And {len(parts) - MAX_DIFFERENCES} more." if len(parts) > MAX_DIFFERENCES else ""
    fix = Fix(tuple(Advice(text) for text in (kind.advice, kind.source) if text))
    detail = " ".join(_sentence(part, total, among) for part in parts[:MAX_DIFFERENCES]) + rest
    return finding(kind.code, kind.severity, evidence[:MAX_DIFFERENCES], fix, detail)


def _sentence(part: list[Difference], total: int, among: str) -> str:
    """Return a difference as text: "3 of 4 nodes have NCCL 2.26.2; rank 3 (d) has 2.21.5."."""
    phrases = []
    groups = list(part[0][1].values())
    for position, members in enumerate(groups):
        verb = "has" if len(members) == 1 and members[0].noun != "ranks" else "have"
        who = f"{len(members)} of {among}" if position == 0 and len(members) > 1 else node_names(members)
        phrases.append(f"{who} {verb} {_values_text(part, position)}")
    known_count = sum(map(len, groups))
    tail = "" if len(groups[0]) * 2 > known_count else " (no majority)"
    tail += f"; unknown on {total - known_count}" if known_count < total else ""
    return "; ".join(phrases) + tail + "."


def _values_text(part: list[Difference], position: int, *, brief: bool = True) -> str:
    """Return the values of a group, given by its position; if brief, a single key is named for the first group only."""
    texts = []
    for (kind, name), groups in part:
        value = list(groups)[position]
        text = "NCCL" if kind == "nccl" and len(part) == 1 else name
        if value == ABSENT:
            texts.append(f"no {text}")
        elif brief and position and len(part) == 1:
            texts.append(value.removeprefix("="))
        else:
            texts.append(f"{text}{value}" if value.startswith("=") else f"{text} {value}")
    return join_some(texts, MAX_VALUES)


def shareable_report(report_of: Callable[[list[Node]], Report], nodes: list[Node]) -> Report:
    """Return the report with numbers instead of host names in its texts.

    Args:
        report_of: Builds the report from nodes.
        nodes: The nodes with their names.
    """
    numbers: dict[str, str] = {}
    for node in nodes:
        for name in (node.name, *node.secrets, node.facts.machine.host if node.facts else ""):
            if len(name) > 1 and name != "localhost" and not name.startswith("127."):
                numbers.setdefault(name, f"<{node.noun} {node.number}>")
    report = report_of([replace(node, name="") for node in nodes])
    if not numbers:
        return report
    alternatives = "|".join(map(re.escape, sorted(numbers, key=len, reverse=True)))
    pattern = re.compile(rf"(?<![\w.-])(?:{alternatives})(?![\w-])")

    def hide_names(text: str) -> str:
        return pattern.sub(lambda match: numbers[match[0]], text)

    return text_filters.change_texts(report, hide_names, skip=_FIXED_WORDS)
