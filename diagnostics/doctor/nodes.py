"""Query the nodes of a job over ssh or Ray, decode their facts, and list the values that `fleet` compares."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from diagnostics.collect import remote
from diagnostics.collect.facts import SCHEMA, Facts
from diagnostics.collect.metadata_validation import is_package_version, may_be_parsed
from diagnostics.collect.packages import Environment
from diagnostics.collect.remote import Answer, NodeError, one_line
from diagnostics.findings import Severity
from diagnostics.fixes import join_some
from diagnostics.frameworks import ENGINE_PACKAGES, TRAINER_PACKAGES
from diagnostics.node_options import NodeOptions, query_nodes
from diagnostics.output import progress

MAX_NODES = 8
Key = tuple[str, str]
_METADATA_FOLDER = re.compile(r"/(?!.*/\.\.?/)\S.*[.-]info", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Node:
    """One node of the job.

    Attributes:
        position: Position in the list of nodes.
        noun: The noun before the number: `rank`, `ranks` or `node`.
        number: Number of the rank or node, such as "3"; for several ranks on one host "6-7".
        name: Host name or address; empty in a shared report.
        facts: Facts of the node; None if it was not examined.
        nccl: Releases of NCCL outside Python's packages.
        models: Models in the node's hub cache.
        problem: Reason why the node was not examined, in one line.
        reached: Whether the node was reached, so that the problem is a message of the node itself.
        dead: Whether Ray reports the node as dead.
        secrets: Names and addresses that must not appear in a shared report.
    """

    position: int
    noun: str
    number: str
    name: str
    facts: Facts | None = None
    nccl: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    problem: str = ""
    reached: bool = False
    dead: bool = False
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def label(self) -> str:
        """The node's name in findings: "rank 3 (d)"."""
        return f"{self.noun} {self.number}" + (f" ({self.name})" if self.name else "")

    @property
    def outcome(self) -> str:
        """Whether the node was examined: `answered`, `dead`, or `unknown`."""
        return "answered" if self.facts else "dead" if self.dead else "unknown"


def node_names(members: list[Node], total: int = 0) -> str:
    """Return the names of nodes as a text, at most MAX_NODES of them.

    With `total`, the number of nodes that answered, all names are returned, or "All … nodes" for all that answered.
    """
    if len(members) == total:
        return "The node that answered" if total == 1 else f"All {total} nodes that answered"
    return join_some([node.label for node in members], total or MAX_NODES)


def collect_nodes(options: NodeOptions, prefix: str) -> tuple[list[Node], str]:
    """Query the hosts or Ray nodes, number them by rank, and return them with a note on how to read the result.

    Args:
        options: The machines, and how to reach them.
        prefix: The environment to examine on hosts for which the list names none; with Ray, only the one that joins.

    Raises:
        RemoteError: The list, the command or the cluster cannot be used.
    """
    progress.update("querying nodes")
    common = "" if options.ray else prefix
    members = query_nodes(options, lambda of_host: remote.collect_program(of_host or common), prefix)
    by_slot = not options.ray and all(member.slots for member in members)
    nodes, rank = [], 0
    for position, member in enumerate(members):
        count = member.slots if by_slot else 1
        number = f"{rank}-{rank + count - 1}" if count > 1 else str(rank)
        noun = "node" if options.ray else "ranks" if count > 1 else "rank"
        rank += count
        secrets = tuple(filter(None, member.secrets))
        answer = read_answer(member.answer)
        nodes.append(Node(position, noun, number, member.name, dead=member.dead, secrets=secrets, **answer))
    if options.ray:
        return nodes, "environment variables and limits are those of Ray's workers on each node"
    return nodes, (
        f"ranks are counted in the order of the list, {'slot by slot' if by_slot else 'one a host'}; environment "
        "variables and limits are those of this connection, which a launcher may change"
    )


def read_answer(answer: Answer) -> dict[str, Any]:
    """Return the fields of Node that an answer fills: `facts`, `nccl`, `models`, or else `problem` and `reached`."""
    try:
        document = answer.document()
        return {
            "facts": decode_facts(document["facts"]),
            "nccl": tuple(map(one_line, document["nccl"])),
            "models": tuple(map(one_line, document["models"])),
        }
    except NodeError as error:
        return {"problem": str(error), "reached": not answer.problem}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return {"problem": one_line(f"unreadable answer: {type(error).__name__}: {error}"), "reached": True}


def decode_facts(document: Any) -> Facts:
    """Decode untrusted facts from another machine; packages with invalid names or versions are dropped.

    Raises:
        ValueError: The document does not have the schema of facts.
    """
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"facts: expected the schema {SCHEMA!r}, found {schema!r}")
    facts = msgspec.convert(document, Facts)
    return replace(facts, environment=_valid_packages(facts.environment))


def _valid_packages(environment: Environment) -> Environment:
    """Drop packages with invalid names or versions, because these become words of commands."""
    wrong = {
        name
        for name, package in environment.packages.items()
        if name != package.name
        or not is_package_version(package.name, package.version)
        or not all(map(may_be_parsed, (*package.requires, package.requires_python)))
    }
    places = {*environment.broken, *(environment.packages[name].place for name in wrong)}
    return replace(
        environment,
        python=environment.python if may_be_parsed(environment.python) else "",
        packages={name: package for name, package in environment.packages.items() if name not in wrong},
        # The printed command removes these folders, so only metadata folders are kept.
        broken=tuple(sorted(place for place in places if _METADATA_FOLDER.fullmatch(place))),
    )


ABSENT = "none"
COMPARED = (*ENGINE_PACKAGES, "torch", "ray", *TRAINER_PACKAGES, "transformers", "deepspeed", "flash-attn")


@dataclass(frozen=True)
class ValueKind:
    """A kind of compared value, such as the driver, and the finding that reports a difference.

    Attributes:
        code: Code of the finding.
        advice: Its fix.
        missing: The value of a node that lacks the key; empty if such a node's value is unknown.
        source: The upstream code that refuses the difference; empty if there is none.
    """

    code: str
    severity: Severity
    advice: str
    missing: str = ""
    source: str = ""


_TABLES = tomllib.loads(Path(__file__).with_name("node_values.toml").read_text(encoding="utf-8"))
VALUE_KINDS = {
    name: ValueKind(**entry | {"severity": Severity[entry["severity"].upper()]})
    for name, entry in _TABLES["kinds"].items()
}
"""The kinds of compared values, in the order of the report."""


def node_values(node: Node) -> Iterator[tuple[Key, str | None]]:
    """Yield the values of a node to compare, as ((kind, name), value); None for a value that is unknown."""
    assert node.facts
    environment, machine = node.facts.environment, node.facts.machine
    for name, package in environment.packages.items():
        kind = "nccl" if name.startswith("nvidia-nccl") else "framework" if name in COMPARED else "package"
        yield (kind, name), package.version
    for name, value in environment.variables.items():
        if name not in _TABLES["node_variables"]:
            kind = "variable" if name.startswith(tuple(_TABLES["warning_variables"])) else "other variable"
            yield (kind, name), f"={value}"
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
