"""Compare the facts of nodes by key, with a table of severities: "3 of 4 nodes have NCCL 2.26.2; rank 3 has 2.21.5"."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

from diagnostics.doctor.checks.base import finding
from diagnostics.doctor.installers import find_installer
from diagnostics.doctor.nodes import MAX_NODES, Node, node_names
from diagnostics.findings import Evidence, Finding, Severity
from diagnostics.fixes import Advice, Fix, Install
from diagnostics.frameworks import ENGINES, TRAINERS

ABSENT = "none"
MAX_DIFFERENCES, MAX_VALUES = 16, 12
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


@dataclass(frozen=True)
class Kind:
    """A kind of compared value and the finding for a difference.

    Attributes:
        missing: The value of a node that lacks the key; empty if such a node's value is unknown.
        source: Where upstream refuses the difference.
    """

    code: str
    severity: Severity
    advice: str
    missing: str = ""
    source: str = ""


_SAME_VALUE = "Set it to the same value in the launcher's or the job's environment, unless it may differ."
_NCCL_SOURCE = (
    'NCCL 2.23.4 and newer, src/init.cc: "Mismatched NCCL version detected" ends with ncclInvalidUsage.'
)
KINDS = {
    "nccl": Kind(
        "NET952", Severity.ERROR, "Install the same torch, and the NCCL that it requires, on every node.", ABSENT,
        _NCCL_SOURCE,
    ),
    "system nccl": Kind(
        "NET952", Severity.WARNING, "Install the same NCCL outside Python's packages on every node, or none.",
        source=_NCCL_SOURCE,
    ),
    "framework": Kind(
        "CMP951", Severity.ERROR, "Install the same releases on all nodes with the same role.", ABSENT
    ),
    "python": Kind(
        "CMP952", Severity.ERROR, "Install the same Python on every node; for Ray, the same patch release too.",
        source="Ray 2.60.0, check_version_info: refuses a process of another Python, also of another patch release.",
    ),
    "package": Kind(
        "CMP953", Severity.INFO, "Install nodes with the same role from one lock or one image.", ABSENT
    ),
    "driver": Kind("ENV951", Severity.WARNING, "Install the same driver on every node that has GPUs."),
    "gpus": Kind("ENV952", Severity.WARNING, "Leave the odd nodes out, or start one process per GPU on each."),
    "variable": Kind("ENV953", Severity.WARNING, _SAME_VALUE, "unset"),
    "other variable": Kind("ENV953", Severity.INFO, _SAME_VALUE, "unset"),
    "limit": Kind(
        "ENV954", Severity.WARNING, "Set the same limit: ulimit, limits.conf or --shm-size of the container."
    ),
    "model": Kind(
        "ENV955", Severity.INFO, "Download it on the nodes that lack it, or share the cache.", ABSENT
    ),
    "architecture": Kind("ENV956", Severity.ERROR, "Install each node for its own architecture."),
    "machine": Kind("ENV956", Severity.INFO, "Nothing, if it is intended."),
}  # fmt: skip
_PACKAGE_KINDS = {"nccl", "framework", "package"}
Key = tuple[str, str]
Groups = dict[str, list[Node]]
Difference = tuple[Key, Groups]


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
    by_finding: dict[tuple[str, Severity], list[Difference]] = defaultdict(list)
    keys = {key for item in values.values() for key in item}
    for key in sorted(keys, key=lambda key: (list(KINDS).index(key[0]), key[1])):
        groups = _group(key, installed if key[0] in _PACKAGE_KINDS else answered, values)
        if len(groups) > 1:
            by_finding[KINDS[key[0]].code, KINDS[key[0]].severity].append((key, groups))
    results = [_difference_finding(found, len(answered), among) for found in by_finding.values()]
    return [*results, _other_environment(bare, installed)] if bare else results


def node_values(node: Node) -> dict[Key, str | None]:
    """Return all compared values, by (kind, name); None for a value that is unknown on this node."""
    assert node.facts
    environment, machine = node.facts.environment, node.facts.machine
    values: dict[Key, str | None] = {}
    for name, package in environment.packages.items():
        kind = "nccl" if name.startswith("nvidia-nccl") else "framework" if name in COMPARED else "package"
        values[kind, name] = package.version
    values["system nccl", "NCCL outside Python's packages"] = ", ".join(node.nccl) or ABSENT
    values["python", "Python"] = environment.python
    gpus = machine.gpus
    models = Counter(gpu.name for gpu in gpus.devices)
    for kind, name, value in (
        ("driver", "NVIDIA driver", gpus.driver), ("driver", "CUDA of the driver", gpus.cuda),
        ("gpus", "GPUs", ", ".join(f"{count} x {model}" for model, count in models.items())),
    ):  # fmt: skip
        # A driver that did not answer is not a driver that is missing.
        values[kind, name] = (value or ABSENT) if gpus.state in {"ok", "none"} else None
    for name, value in environment.variables.items():
        if name not in NODE_VARIABLES:
            kind = "variable" if name.startswith(_WARNING_VARIABLES) else "other variable"
            values[kind, name] = f"={value}"
    for name, limit in machine.limits.items():
        values["limit", f"limit of {name}"] = "unlimited" if limit.soft is None else str(limit.soft)
    shared = machine.disk("shared memory")
    size = shared.total_gb if shared else None
    values["limit", "shared memory"] = None if size is None else f"{size:.1f} GB"
    values["architecture", "architecture"] = machine.architecture
    # Rounded, because the firmware of equal machines reserves different amounts.
    memory = machine.memory.total_gb
    values["machine", "memory"] = None if memory is None else f"{round(memory)} GB"
    values["machine", "C library"] = machine.libraries.libc or None
    values["machine", "kernel"] = machine.kernel
    values["machine", "processors"] = str(machine.processors.count)
    return values | {("model", f"model {name}"): "in the cache" for name in node.models}


def _group(key: Key, nodes: list[Node], values: dict[int, dict[Key, str | None]]) -> Groups:
    """Group nodes by value, the largest group first; nodes whose value is unknown are in no group."""
    groups: Groups = defaultdict(list)
    for node in nodes:
        if value := values[node.position].get(key, KINDS[key[0]].missing):
            groups[value].append(node)
    return dict(sorted(groups.items(), key=lambda item: (-len(item[1]), item[1][0].position)))


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
        detail=f"{node_names(bare)}: none of {', '.join(names)}, which the other nodes have.",
    )  # fmt: skip


def _difference_finding(found: list[Difference], total: int, among: str) -> Finding:
    kind = KINDS[found[0][0][0]]
    # One other lock shows in fifty packages and is one difference: keys with the same groups are joined.
    joined: dict[tuple[tuple[int, ...], ...], list[Difference]] = defaultdict(list)
    for key, groups in found:
        positions = tuple(tuple(node.position for node in members) for members in groups.values())
        joined[positions].append((key, groups))
    parts = list(joined.values())
    evidence = [
        Evidence(_values_text(part, place, brief=False), node_names(members))
        for part in parts for place, members in enumerate(part[0][1].values())
    ]  # fmt: skip
    rest = f" And {len(parts) - MAX_DIFFERENCES} more." if len(parts) > MAX_DIFFERENCES else ""
    advice = [Advice(text) for text in (kind.advice, kind.source) if text]
    return finding(
        kind.code, kind.severity, evidence[:MAX_DIFFERENCES], Fix((*advice, *_installs(found))),
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
            phrases.append(f"{node_names(members)} {verb} {values}")
    known = sum(map(len, groups))
    tail = "" if len(groups[0]) * 2 > known else " (no majority)"
    tail += f"; unknown on {total - known}" if known < total else ""
    return "; ".join(phrases) + tail + "."


def _values_text(part: list[Difference], place: int, *, brief: bool = True) -> str:
    """Return the values of one group; if brief, only the first group has the name of a single key."""
    texts = []
    for (kind, name), groups in part[:MAX_VALUES]:
        value = list(groups)[place]
        text = "NCCL" if kind == "nccl" and len(part) == 1 else name
        if value == ABSENT:
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
        if kind in _PACKAGE_KINDS and majority and value != ABSENT:
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
