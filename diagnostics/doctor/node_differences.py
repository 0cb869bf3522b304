"""Report values that differ between the nodes of a job, such as package versions, variables, limits or drivers.

`node_values` yields the values of a node by kind and name. `differences` yields the findings, with texts such as
"torch 2.9.0 on 3 of 4 nodes; torch 2.6.0 on rank 3 (d)". Code, severity and advice of each kind are in
node_values.toml.
"""

import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from diagnostics.doctor.checks.registry import NotApplicableError, finding
from diagnostics.doctor.node_query import Node, node_names
from diagnostics.findings import Evidence, Finding, Severity
from diagnostics.fixes import Advice, Fix, join_some
from diagnostics.frameworks import ENGINE_PACKAGES, TRAINER_PACKAGES

MAX_DIFFERENCES, MAX_VALUES = 16, 12
ABSENT = "none"
"""The value of something that a node lacks."""
# Packages whose differences have the kind `framework`; other packages have the kind `package`.
STACK = (*ENGINE_PACKAGES, "torch", "ray", *TRAINER_PACKAGES, "transformers", "deepspeed", "flash-attn")
# Kind and name of a value.
Key = tuple[str, str]
# The nodes with each value of a key.
Groups = dict[str, list[Node]]
# A key of which the nodes have several values.
Difference = tuple[Key, Groups]


_TABLES = tomllib.loads(Path(__file__).with_name("node_values.toml").read_text(encoding="utf-8"))
VALUE_KINDS: dict[str, dict[str, str]] = _TABLES["kinds"]
"""The kinds of compared values, in the order of the report, each with the finding that reports a difference."""


def node_values(node: Node) -> Iterator[tuple[Key, str | None]]:
    """Yield the values of a node to compare, as ((kind, name), value); None for a value that is unknown.

    Variables that differ between nodes by design, such as RANK, are left out.
    """
    assert node.facts
    environment, machine = node.facts.environment, node.facts.machine
    for name, package in environment.packages.items():
        kind = "nccl" if name.startswith("nvidia-nccl") else "framework" if name in STACK else "package"
        yield (kind, name), package.version
    for name, value in environment.variables.items():
        if name not in _TABLES["node_variables"]:
            kind = "variable" if name.startswith(tuple(_TABLES["warning_variables"])) else "other variable"
            yield (kind, name), value
    for name, limit in machine.limits.items():
        yield ("limit", f"limit of {name}"), "unlimited" if limit.soft is None else str(limit.soft)
    for name in node.models:
        yield ("model", f"model {name}"), "in the cache"
    gpus, shared_memory, memory = machine.gpus, machine.disk("shared memory"), machine.memory.total_gb
    models = Counter(gpu.name for gpu in gpus.devices)
    # If the driver did not answer, it is unknown and not missing.
    absent = ABSENT if gpus.state in {"ok", "none"} else None
    yield ("driver", "NVIDIA driver"), gpus.driver or absent
    yield ("driver", "CUDA of the driver"), gpus.cuda or absent
    yield ("gpus", "GPUs"), ", ".join(f"{count} x {model}" for model, count in models.items()) or absent
    yield ("system nccl", "NCCL outside Python's packages"), ", ".join(node.nccl) or ABSENT
    yield ("python", "Python"), environment.python
    size = shared_memory.total_gb if shared_memory else None
    yield ("limit", "shared memory"), None if size is None else f"{size:.1f} GB"
    yield ("architecture", "architecture"), machine.architecture
    # Rounded, because the firmware of equal machines reserves different amounts.
    yield ("machine", "memory"), None if memory is None else f"{memory:.0f} GB"
    yield ("machine", "C library"), machine.libraries.libc or None
    yield ("machine", "kernel"), machine.kernel
    yield ("machine", "processors"), str(machine.processors.count)


def differences(nodes: list[Node]) -> Iterator[Finding]:
    """Yield the differences between the nodes that answered, one finding for each code and severity.

    Raises:
        NotApplicableError: Fewer than two nodes answered.
    """
    answered = [node for node in nodes if node.facts]
    if len(answered) < 2:
        raise NotApplicableError(f"{len(answered)} of {len(nodes)} answered")
    count = len(answered)
    among = f"{count} nodes" if count == len(nodes) else f"the {count} nodes that answered"
    values = {node.position: dict(node_values(node)) for node in answered}
    by_finding: dict[tuple[str, str], list[Difference]] = defaultdict(list)
    keys = {key for item in values.values() for key in item}
    for key in sorted(keys, key=lambda key: (list(VALUE_KINDS).index(key[0]), key[1])):
        kind = VALUE_KINDS[key[0]]
        groups: Groups = defaultdict(list)
        for node in answered:
            # Nodes whose value is unknown are in no group.
            if value := values[node.position].get(key, kind.get("missing")):
                groups[value].append(node)
        if len(groups) > 1:
            largest = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1][0].position))
            by_finding[kind["code"], kind["severity"]].append((key, dict(largest)))
    for items in by_finding.values():
        yield _difference_finding(items, count, among)


def _difference_finding(items: list[Difference], total: int, among: str) -> Finding:
    """Return the finding for differences with one code and severity; it describes at most MAX_DIFFERENCES of them.

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
        Evidence(_values_text(part, position), node_names(members))
        for part in parts
        for position, members in enumerate(part[0][1].values())
    ]
    rest = f" And {len(parts) - MAX_DIFFERENCES} more." if len(parts) > MAX_DIFFERENCES else ""
    fix = Fix(tuple(Advice(kind[name]) for name in ("advice", "source") if name in kind))
    detail = " ".join(_sentence(part, total, among) for part in parts[:MAX_DIFFERENCES]) + rest
    severity = Severity[kind["severity"].upper()]
    return finding(kind["code"], severity, evidence[:MAX_DIFFERENCES], fix, detail)


def _sentence(part: list[Difference], total: int, among: str) -> str:
    """Return differences with the same groups as text: "torch 2.9.0 on 3 of 4 nodes; torch 2.6.0 on rank 3 (d)."."""
    groups = list(part[0][1].values())
    places = [node_names(members) for members in groups]
    places[0] = f"{len(groups[0])} of {among}" if len(groups[0]) > 1 else places[0]
    text = "; ".join(f"{_values_text(part, position)} on {place}" for position, place in enumerate(places))
    known_count = sum(map(len, groups))
    text += "" if len(groups[0]) * 2 > known_count else " (no majority)"
    return text + (f"; unknown on {total - known_count}." if known_count < total else ".")


def _values_text(part: list[Difference], position: int) -> str:
    """Return the names and values of a group, which is given by its position."""
    values = [(name, list(groups)[position]) for (_, name), groups in part]
    texts = [f"no {name}" if value == ABSENT else f"{name} {value}" for name, value in values]
    return join_some(texts, MAX_VALUES)
