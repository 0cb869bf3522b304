"""Examine the nodes of a job: each by itself, and their differences by key with a table of severities."""

from __future__ import annotations

import re
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from diagnostics import UserError
from diagnostics.catalog.model import Issue
from diagnostics.collect import remote
from diagnostics.collect.facts import SCHEMA, Facts
from diagnostics.collect.names import is_package_version, may_be_parsed
from diagnostics.collect.packages import Environment
from diagnostics.collect.remote import Answer, Member, NodeError, RemoteError, one_line
from diagnostics.compat_table import Compat
from diagnostics.doctor import run_checks
from diagnostics.doctor.checks.base import finding
from diagnostics.doctor.fix_plan.installers import find_installer
from diagnostics.findings import CheckResult, Evidence, Finding, NotChecked, Report, Severity
from diagnostics.fixes import Advice, Fix, Install, map_texts
from diagnostics.frameworks import ENGINES, PACKAGES, TRAINERS
from diagnostics.node_options import NodeOptions
from diagnostics.output import progress
from diagnostics.output.redact import redact

NONE = "none"
MAX_NODES, MAX_DIFFERENCES, MAX_VALUES = 8, 16, 12
SKEW_S = 1.0
COMPARED = (*ENGINES, "torch", "ray", *TRAINERS, "transformers", "deepspeed", "flash-attn")
# Variables that differ between healthy nodes.
NODE_VARIABLES = {
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "LOCAL_WORLD_SIZE", "VLLM_HOST_IP", "TMPDIR",
    "RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_WORKER_ID", "RAY_NODE_ID", "RAY_NODE_IP_ADDRESS",
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING", "RAY_PROCESS_STARTUP_TOKEN", "RAY_ADDRESS",
}  # fmt: skip
_WARNING_VARIABLES = (
    "NCCL_", "VLLM_", "GLOO_", "MASTER_", "PYTORCH_", "TORCH", "CUDA_", "RAY_", "VERL_", "LD_", "WORLD_SIZE",
)  # fmt: skip
_SET_ALIKE = "Set it alike in the launcher's or the job's environment, unless it may differ."
# By the kind of a key: code, severity, fix.
SEVERITIES = {
    "nccl": ("NET952", Severity.ERROR, "Install the same torch, and the NCCL that it requires, on every node."),
    "system nccl": ("NET952", Severity.WARNING, "Outside Python's packages, the same NCCL on every node, or none."),
    "framework": ("CMP951", Severity.ERROR, "Install the same releases on all nodes with the same role."),
    "python": ("CMP952", Severity.ERROR, "Install the same Python on every node; for Ray, the same patch release too."),
    "package": ("CMP953", Severity.INFO, "Install nodes with the same role from one lock or one image."),
    "driver": ("ENV951", Severity.WARNING, "Install the same driver on every node that has GPUs."),
    "gpus": ("ENV952", Severity.WARNING, "Leave the odd nodes out, or start one process per GPU on each."),
    "variable": ("ENV953", Severity.WARNING, _SET_ALIKE),
    "other variable": ("ENV953", Severity.INFO, _SET_ALIKE),
    "limit": ("ENV954", Severity.WARNING, "Set it alike: ulimit, limits.conf or --shm-size of the container."),
    "model": ("ENV955", Severity.INFO, "Download it on the nodes that lack it, or share the cache."),
    "architecture": ("ENV956", Severity.ERROR, "Install each node for its own architecture."),
    "machine": ("ENV956", Severity.INFO, "Nothing, if it is intended."),
}  # fmt: skip
_SOURCES = {
    "NET952": 'NCCL 2.23.4 and newer, src/init.cc: "Mismatched NCCL version detected" ends with ncclInvalidUsage.',
    "CMP952": "Ray 2.60.0, check_version_info: refuses a process of another Python, also of another patch release.",
}  # fmt: skip


@dataclass(frozen=True)
class Node:
    """A node of the fleet.

    Attributes:
        word: What its number is called: `rank`, `ranks` or `node`.
        number: That number, as "3" or "6-7".
        name: Its name or address; empty in a shared report.
        facts: Its facts; None if it was not examined.
        problem: Why it was not examined, one line.
        reached: Whether it was reached, so that the problem is its own message.
        clock: The least and greatest number of seconds its clock is ahead of ours.
        secrets: Names and addresses that must not appear in a shared report.
    """

    position: int
    word: str
    number: str
    name: str
    facts: Facts | None = None
    nccl: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    problem: str = ""
    reached: bool = False
    dead: bool = False
    clock: tuple[float, float] | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def label(self) -> str:
        """Its name in findings: "rank 3 (d)"."""
        return f"{self.word} {self.number}" + (f" ({self.name})" if self.name else "")


def query_nodes(options: NodeOptions, prefix: str) -> tuple[list[Node], str]:
    """Query the nodes; return them with a note on how they were reached.

    Raises:
        UserError: The list, the command or the cluster cannot be used.
    """
    progress.update("querying nodes")
    try:
        members = remote.query_nodes(
            options,
            lambda of_host: remote.collect_program(of_host or ("" if options.ray else prefix)),
            prefix,
        )
    except RemoteError as error:
        raise UserError(str(error)) from None
    if options.ray:
        nodes = [
            read_node(member, position, "node", str(position)) for position, member in enumerate(members)
        ]
        return nodes, "environment variables and limits are those of Ray's workers on each node"
    slots = all(member.slots for member in members)
    nodes, rank = [], 0
    for position, member in enumerate(members):
        several = slots and member.slots > 1
        number = f"{rank}-{rank + member.slots - 1}" if several else str(rank)
        nodes.append(read_node(member, position, "ranks" if several else "rank", number))
        rank += member.slots if slots else 1
    counted = "slot by slot" if slots else "one a host"
    return nodes, (
        f"ranks are counted in the order of the list, {counted}; environment variables and limits are those of this "
        "connection, which a launcher may change"
    )


def read_node(member: Member, position: int, word: str, number: str) -> Node:
    """Read the answer of a node; one without facts keeps its problem."""
    node = Node(
        position, word, number, member.name, dead=member.dead, secrets=tuple(filter(None, member.secrets))
    )
    return replace(node, **read_answer(member.answer))


def read_answer(answer: Answer) -> dict[str, Any]:
    """Return what an answer contains, as fields of Node."""
    try:
        document = answer.document()
        return {
            "facts": decode_facts(document["facts"]), "nccl": tuple(map(one_line, document["nccl"])),
            "models": tuple(map(one_line, document["models"])), "clock": answer.clock_offset(document),
        }  # fmt: skip
    except NodeError as error:
        return {"problem": str(error), "reached": not answer.problem}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return {"problem": one_line(f"unreadable answer: {type(error).__name__}: {error}"), "reached": True}


_METADATA_FOLDER = re.compile(r"/(?!.*/\.\.?/)\S.*[.-]info", re.IGNORECASE | re.DOTALL)


def decode_facts(document: Any) -> Facts:
    """Decode facts that any machine wrote.

    Raises:
        ValueError: It is no such document.
    """
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"facts: expected the schema {SCHEMA!r}, found {schema!r}")
    facts = msgspec.convert(document, Facts)
    return replace(facts, environment=_valid_packages(facts.environment))


def _valid_packages(environment: Environment) -> Environment:
    """Keep what this machine would have taken for a package: names and versions become words of commands."""
    wrong = {
        name for name, package in environment.packages.items()
        if name != package.name or not is_package_version(package.name, package.version)
        or not all(map(may_be_parsed, (*package.requires, package.requires_python)))
    }  # fmt: skip
    places = {*environment.broken, *(environment.packages[name].place for name in wrong)}
    return replace(
        environment, python=environment.python if may_be_parsed(environment.python) else "",
        packages={name: package for name, package in environment.packages.items() if name not in wrong},
        # The printed command removes these folders, so only metadata folders are kept.
        broken=tuple(sorted(place for place in places if _METADATA_FOLDER.fullmatch(place))),
    )  # fmt: skip


def examine_fleet(nodes: list[Node], issues: dict[str, Issue], compat: Compat, note: str = "") -> Report:
    """Check every node that answered, and compare them. Nodes that did not answer are named, and never healthy."""
    answered = [node for node in nodes if node.facts]
    checks = [_reached(node) for node in nodes]
    compared, alone = "differences between nodes", "each node by itself"
    if len(answered) < 2:
        checks.append(CheckResult(compared, "skipped", f"{len(answered)} of {len(nodes)} answered"))
    else:
        checks.append(_run_comparison(compared, nodes))
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


def _run_comparison(name: str, nodes: list[Node]) -> CheckResult:
    try:
        results = differences(nodes)
    except Exception as error:  # noqa: BLE001 - a check that crashes is a result
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
        return CheckResult(name, "crashed", f"{type(error).__name__}: {error} ({place}); please report it")
    return CheckResult.of(name, results)


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
            "the Python that does it is that of Ray's workers"
            if of_ray
            else "--host-python the Python that does it"
        )
        return f"Fix there what it reports. --prefix names the environment that is examined; {python}."
    if of_ray:
        return "Check `ray status`, `ray list nodes` and its logs; for a slow node raise --node-limit."
    return (
        "Try the connection by hand: `ssh HOST python3`, or the words of --host-command. For a slow host raise "
        "--node-limit, for a Python elsewhere set --host-python."
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
                item, what=f"{_node_names(members, len(nodes))}: {item.what}",
                place=f"{members[0].label}: {item.place}" if item.place else "",
            )
            for item, members in missing.values()
        ],
    )  # fmt: skip
    return replace(result, outcome="crashed", reason="; ".join(crashed)) if crashed else result


def _with_nodes(item: Finding, members: list[Node], total: int) -> Finding:
    evidence = tuple(Evidence(entry.text, f"{members[0].label}: {entry.place}") for entry in item.evidence)
    return replace(
        item, detail=f"{_node_names(members, total)}: {item.detail.strip() or item.title}", evidence=evidence
    )


def _node_names(members: list[Node], total: int = 0) -> str:
    if len(members) == total:
        return "The node that answered" if total == 1 else f"All {total} nodes that answered"
    names = ", ".join(node.label for node in members[: total or MAX_NODES])
    rest = len(members) - MAX_NODES
    return names + (f" and {rest} more" if not total and rest > 0 else "")


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


def node_values(node: Node) -> dict[tuple[str, str], str | None]:
    """Return everything that is compared, by (kind, name); None for what is unknown on this node."""
    assert node.facts
    environment, machine = node.facts.environment, node.facts.machine
    values: dict[tuple[str, str], str | None] = {}
    for name, package in environment.packages.items():
        kind = "nccl" if name.startswith("nvidia-nccl") else "framework" if name in COMPARED else "package"
        values[kind, name] = package.version
    values["system nccl", "NCCL outside Python's packages"] = ", ".join(node.nccl) or NONE
    values["python", "Python"] = environment.python
    gpus = machine.gpus
    known = {"ok": True, "none": True}.get(gpus.state, False)
    models = Counter(gpu.name for gpu in gpus.devices)
    listed = ", ".join(f"{count} x {model}" for model, count in models.items())
    for kind, name, value in (
        ("driver", "NVIDIA driver", gpus.driver), ("driver", "CUDA of the driver", gpus.cuda), ("gpus", "GPUs", listed),
    ):  # fmt: skip
        # A driver that did not answer is not a driver that is missing.
        values[kind, name] = (value or NONE) if known else None
    for name, value in environment.variables.items():
        if name not in NODE_VARIABLES:
            values["variable" if name.startswith(_WARNING_VARIABLES) else "other variable", name] = (
                f"={value}"
            )
    for name, limit in machine.limits.items():
        values["limit", f"limit of {name}"] = "unlimited" if limit.soft is None else str(limit.soft)
    shared = machine.disk("shared memory")
    values["limit", "shared memory"] = (
        f"{shared.total_gb:.1f} GB" if shared and shared.total_gb is not None else None
    )
    values["architecture", "architecture"] = machine.architecture
    # Equal machines differ by what the firmware keeps of the memory.
    memory = machine.memory.total_gb
    values["machine", "memory"] = f"{round(memory)} GB" if memory is not None else None
    values["machine", "C library"] = machine.libraries.libc or None
    values["machine", "kernel"] = machine.kernel
    values["machine", "processors"] = str(machine.processors.count)
    values |= {("model", f"model {name}"): "in the cache" for name in node.models}
    return values


# What a missing key means: not installed, not set, not in the cache; elsewhere it is unknown.
_MISSING = {
    "nccl": NONE, "framework": NONE, "package": NONE, "model": NONE, "variable": "unset", "other variable": "unset",
}  # fmt: skip
_PACKAGE_KINDS = {"nccl", "framework", "package"}
Groups = dict[str, list[Node]]
Difference = tuple[tuple[str, str], Groups]


def differences(nodes: list[Node]) -> list[Finding]:
    """Return the differences between the nodes that answered, one finding for each code and severity."""
    answered = [node for node in nodes if node.facts]
    if len(answered) < 2:
        return []
    among = (
        f"{len(answered)} nodes"
        if len(answered) == len(nodes)
        else f"the {len(answered)} nodes that answered"
    )
    bare = _without_frameworks(answered)
    # A node with none of the frameworks is another environment, not the odd one in each of fifty packages.
    installed = [node for node in answered if node not in bare]
    values = {node.position: node_values(node) for node in answered}
    by_kind: dict[tuple[str, Severity], list[Difference]] = defaultdict(list)
    for key in sorted(
        {key for item in values.values() for key in item},
        key=lambda key: (list(SEVERITIES).index(key[0]), key[1]),
    ):
        groups = _group(key, installed if key[0] in _PACKAGE_KINDS else answered, values)
        if len(groups) > 1:
            by_kind[SEVERITIES[key[0]][:2]].append((key, groups))
    results = [_difference_finding(results, len(answered), among) for results in by_kind.values()]
    if bare:
        results.append(_other_environment(bare, installed))
    return [*results, *_clock_differences(answered)]


def _without_frameworks(nodes: list[Node]) -> list[Node]:
    """Return the nodes with none of the frameworks that others have."""
    bare = [node for node in nodes if not _frameworks(node)]
    return bare if len(bare) < len(nodes) else []


def _frameworks(node: Node) -> set[str]:
    return set(COMPARED) & set(node.facts.environment.packages) if node.facts else set()


def _other_environment(bare: list[Node], installed: list[Node]) -> Finding:
    names = sorted(set.intersection(*map(_frameworks, installed)) or _frameworks(installed[0]))
    in_list = "" if bare[0].word == "node" else ", prefix=DIR in the list for one"
    return finding(
        "CMP951", Severity.ERROR,
        [Evidence(f"examined: {node.facts.environment.prefix}", node.label) for node in bare if node.facts],
        Fix.of(
            "If that is not the environment that runs there, name the right one: --prefix for all nodes"
            f"{in_list}. Otherwise install it as on the other nodes."
        ),
        detail=f"{_node_names(bare)}: none of {', '.join(names)}, which the other nodes have.",
    )  # fmt: skip


def _group(
    key: tuple[str, str], nodes: list[Node], values: dict[int, dict[tuple[str, str], str | None]]
) -> Groups:
    """Group nodes by value, the largest group first; nodes whose value is unknown are in no group."""
    groups: Groups = defaultdict(list)
    for node in nodes:
        value = values[node.position].get(key, _MISSING.get(key[0]))
        if value is not None:
            groups[value].append(node)
    return dict(sorted(groups.items(), key=lambda item: (-len(item[1]), item[1][0].position)))


def _difference_finding(found: list[Difference], total: int, among: str) -> Finding:
    code, severity, advice = SEVERITIES[found[0][0][0]]
    # One other lock shows in fifty packages and is one difference: keys with the same groups are joined.
    joined: dict[tuple[tuple[int, ...], ...], list[Difference]] = defaultdict(list)
    for key, groups in found:
        positions = tuple(tuple(node.position for node in members) for members in groups.values())
        joined[positions].append((key, groups))
    parts = list(joined.values())
    evidence = [
        Evidence(_values_text(part, place, brief=False), _node_names(members))
        for part in parts for place, members in enumerate(part[0][1].values())
    ]  # fmt: skip
    rest = f" And {len(parts) - MAX_DIFFERENCES} more." if len(parts) > MAX_DIFFERENCES else ""
    source = [Advice(_SOURCES[code])] if code in _SOURCES else []
    return finding(
        code, severity, evidence[:MAX_DIFFERENCES], Fix((Advice(advice), *source, *_installs(found))),
        detail=" ".join(sentence(part, total, among) for part in parts[:MAX_DIFFERENCES]) + rest,
    )  # fmt: skip


def sentence(part: list[Difference], total: int, among: str) -> str:
    """Say what most nodes have and which differ: "3 of 4 nodes have NCCL 2.26.2; rank 3 (d) has 2.21.5."."""
    phrases = []
    groups = list(part[0][1].values())
    for place, members in enumerate(groups):
        values = _values_text(part, place)
        if place == 0 and len(members) > 1:
            phrases.append(f"{len(members)} of {among} have {values}")
        else:
            verb = "has" if len(members) == 1 and members[0].word != "ranks" else "have"
            phrases.append(f"{_node_names(members)} {verb} {values}")
    known = sum(map(len, groups))
    tail = "" if len(groups[0]) * 2 > known else " (no majority)"
    tail += f"; unknown on {total - known}" if known < total else ""
    return "; ".join(phrases) + tail + "."


def _values_text(part: list[Difference], place: int, *, brief: bool = True) -> str:
    """Return the values of one group; if brief, the name of a single key stands only in the first group."""
    texts = []
    for (kind, name), groups in part[:MAX_VALUES]:
        value = list(groups)[place]
        text = "NCCL" if kind == "nccl" and len(part) == 1 else name
        if value == NONE:
            texts.append(f"no {text}")
        elif brief and place and len(part) == 1:
            texts.append(value.removeprefix("="))
        else:
            texts.append(f"{text}{value}" if value.startswith("=") else f"{text} {value}")
    rest = f" and {len(part) - MAX_VALUES} more" if len(part) > MAX_VALUES else ""
    return ", ".join(texts) + rest


def _installs(found: list[Difference]) -> list[Install]:
    """Return the commands that give each odd node the majority's packages, one a node."""
    required: dict[int, list[str]] = defaultdict(list)
    odd: dict[int, Node] = {}
    for (kind, name), groups in found:
        (value, members), *odd_groups = groups.items()
        majority = len(members) * 2 > sum(map(len, groups.values()))
        if kind in _PACKAGE_KINDS and majority and value != NONE:
            for node in (node for _, group in odd_groups for node in group):
                required[node.position].append(f"{name}=={value}")
                odd[node.position] = node
    installs = []
    for position in sorted(required)[:MAX_NODES]:
        facts = odd[position].facts
        assert facts
        command = find_installer(facts.environment).install(required[position])
        installs.append(replace(command, note=f"on {odd[position].label}"))
    if (rest := len(required) - MAX_NODES) > 0:
        installs[-1] = replace(installs[-1], note=f"{installs[-1].note}; and similar on {rest} more")
    return installs


def _clock_differences(nodes: list[Node]) -> list[Finding]:
    """Report nodes whose clock surely differs by more than SKEW_S from most others, however slow their answers were."""
    known = [(node, node.clock) for node in nodes if node.clock]
    phrases, evidence = [], []
    for node, (least, most) in known:
        remaining = [clock for peer, clock in known if peer is not node]
        gaps = sorted(gap for low, high in remaining if (gap := max(least - high, low - most)) > SKEW_S)
        if remaining and len(gaps) * 2 > len(remaining):
            word = "ahead" if least > min(high for _, high in remaining) else "behind"
            phrases.append(f"the clock of {node.label} is at least {gaps[0]:.1f} s {word}")
            evidence.append(Evidence(f"{least:+.2f} to {most:+.2f} s from the clock here", node.label))
    if not phrases:
        return []
    detail = f"Compared with most other nodes {'; '.join(phrases)}."
    fix = Fix.of("Let a time service set the clocks.")
    return [finding("NET953", Severity.WARNING, evidence, fix, detail=detail)]


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

    report = report_of([replace(node, name="", problem=hide(node.problem)) for node in nodes])
    return _change_texts(report, hide)


def _change_texts(report: Report, change: Callable[[str], str]) -> Report:
    checks = tuple(
        replace(
            check, reason=change(check.reason),
            findings=tuple(_change_finding(item, change) for item in check.findings),
            not_judged=tuple(
                replace(
                    entry, what=change(entry.what), why=change(entry.why), remedy=change(entry.remedy),
                    place=change(entry.place),
                )
                for entry in check.not_judged
            ),
        )
        for check in report.checks
    )  # fmt: skip
    nodes = [{**node, "problem": change(node["problem"])} for node in report.subject["nodes"]]
    subject = {**report.subject, "nodes": nodes}
    return replace(report, checks=checks, subject=subject, notes=tuple(map(change, report.notes)))


def _change_finding(item: Finding, change: Callable[[str], str]) -> Finding:
    evidence = tuple(Evidence(change(entry.text), change(entry.place)) for entry in item.evidence)
    remedy = map_texts(item.remedy, change) if item.remedy else None
    return replace(
        item, title=change(item.title), detail=change(item.detail), evidence=evidence, remedy=remedy
    )
