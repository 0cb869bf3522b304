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
# The names and values that each group of nodes has.
Values = list[tuple[str, list[str]]]


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
    values = [dict(node_values(node)) for node in answered]
    # Keys with the same groups are joined: another lock file changes fifty packages and is one difference.
    joined: dict[str, dict[tuple[tuple[int, ...], ...], Values]] = defaultdict(lambda: defaultdict(list))
    order = list(VALUE_KINDS)
    for kind, name in sorted(set().union(*values), key=lambda key: (order.index(key[0]), key[1])):
        groups: dict[str, list[int]] = defaultdict(list)
        for position, of_node in enumerate(values):
            # Nodes whose value is unknown are in no group.
            if value := of_node.get((kind, name), VALUE_KINDS[kind].get("missing")):
                groups[value].append(position)
        if len(groups) > 1:
            largest = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1][0]))
            members = tuple(tuple(positions) for _, positions in largest)
            joined[kind][members].append((name, [value for value, _ in largest]))
    for kind, parts in joined.items():
        texts, evidence = [], []
        for members, items in parts.items():
            groups_of_nodes = [[answered[position] for position in group] for group in members]
            entries = [_values_text(items, number) for number in range(len(members))]
            evidence += [
                Evidence(*pair) for pair in zip(entries, map(node_names, groups_of_nodes), strict=True)
            ]
            texts.append(_sentence(entries, groups_of_nodes, len(answered), len(nodes)))
        table = VALUE_KINDS[kind]
        rest = [f"And {len(texts) - MAX_DIFFERENCES} more."] if len(texts) > MAX_DIFFERENCES else []
        fix = Fix(tuple(Advice(table[name]) for name in ("advice", "source") if name in table))
        severity = Severity[table["severity"].upper()]
        detail = " ".join(texts[:MAX_DIFFERENCES] + rest)
        yield finding(table["code"], severity, evidence[:MAX_DIFFERENCES], fix, detail)


def _sentence(entries: list[str], groups: list[list[Node]], answered: int, total: int) -> str:
    """Return differences with the same groups as text: "torch 2.9.0 on 3 of 4 nodes; torch 2.6.0 on rank 3 (d)."."""
    places = [node_names(members) for members in groups]
    known_count, largest = sum(map(len, groups)), len(groups[0])
    if largest > 1:
        among = f"{answered} nodes" if answered == total else f"the {answered} nodes that answered"
        places[0] = f"{largest} of {among}"
    text = "; ".join(f"{entry} on {place}" for entry, place in zip(entries, places, strict=True))
    text += "" if largest * 2 > known_count else " (no majority)"
    return text + (f"; unknown on {answered - known_count}." if known_count < answered else ".")


def _values_text(items: Values, number: int) -> str:
    """Return the names and values of a group, which is given by its number."""
    values = [(name, of_groups[number]) for name, of_groups in items]
    return join_some([f"no {name}" if it == ABSENT else f"{name} {it}" for name, it in values], MAX_VALUES)
