"""Collect the facts of a job's nodes over ssh, a command or Ray, and decode their answers.

`collect_nodes` returns the nodes. Hosts are numbered by rank, in the order of their list; Ray's nodes are numbered in
the order of their addresses.

Answers are untrusted: one that cannot be decoded becomes the node's `problem`.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from diagnostics.collect import remote
from diagnostics.collect.facts import SCHEMA, Facts
from diagnostics.collect.remote import Answer, NodeError, printable_line
from diagnostics.cpu_limit import CpuLimitError, cpu_limit
from diagnostics.fixes import join_some
from diagnostics.multi_node_options import NodeOptions, query_nodes
from diagnostics.output import progress

MAX_NAMES = 8


@dataclass(frozen=True)
class Node:
    """One node of the job.

    Attributes:
        position: Position in the list of nodes.
        noun: The noun before the number: `rank`, `ranks` or `node`.
        number: Number of the rank or node, such as "3"; for several ranks on one host "6-7".
        name: Host name or address.
        facts: Facts of the node; None if it was not examined.
        nccl: Releases of NCCL outside Python's packages.
        models: Models in the node's hub cache.
        problem: Reason why the node was not examined, in one line.
        dead: Whether Ray reports the node as dead.
    """

    position: int
    noun: str
    number: str
    name: str
    facts: Facts | None = None
    nccl: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    problem: str = ""
    dead: bool = False

    @property
    def label(self) -> str:
        """The node's name in findings: "rank 3 (d)"."""
        return f"{self.noun} {self.number} ({self.name})"

    @property
    def outcome(self) -> str:
        """Whether the node was examined: `answered`, `dead`, or `unknown`."""
        return "answered" if self.facts else "dead" if self.dead else "unknown"


def node_names(members: list[Node], total: int = 0) -> str:
    """Return the names of nodes as a text; without `total`, at most MAX_NAMES of them.

    `total` is the number of nodes that answered; for that many nodes the text is "All … nodes that answered".
    """
    if len(members) == total:
        return "The node that answered" if total == 1 else f"All {total} nodes that answered"
    return join_some([node.label for node in members], total or MAX_NAMES)


def collect_nodes(options: NodeOptions, prefix: str) -> tuple[list[Node], str]:
    """Query the hosts or Ray nodes, number them, and return them with a note on how to read the result.

    Args:
        options: The machines, and how to reach them.
        prefix: The environment to examine on hosts; with Ray, the one whose Python joins.

    Raises:
        RemoteError: The list, the command or the cluster cannot be used.
    """
    progress.update("querying nodes")
    answers = query_nodes(options, remote.collect_program("" if options.ray else prefix), prefix)
    by_slot = not options.ray and all(answer.slots for answer in answers)
    nodes, rank = [], 0
    for position, answer in enumerate(answers):
        count = answer.slots if by_slot else 1
        number = f"{rank}-{rank + count - 1}" if count > 1 else str(rank)
        noun = "node" if options.ray else "ranks" if count > 1 else "rank"
        rank += count
        nodes.append(Node(position, noun, number, answer.name, dead=answer.dead, **read_answer(answer)))
    if options.ray:
        return nodes, "environment variables and limits are those of Ray's workers on each node"
    order = "ranks are counted slot by slot" if by_slot else "ranks are counted one a host"
    return nodes, f"{order}; variables and limits are those of this connection, which a launcher may change"


class _Document(msgspec.Struct):
    """What `collect_node` returns on a node."""

    facts: dict[str, Any]
    nccl: list[str]
    models: list[str]


def read_answer(answer: Answer) -> dict[str, Any]:
    """Return the fields of Node that an answer fills: `facts`, `nccl` and `models`, or else `problem`."""
    try:
        with cpu_limit("reading the answer", 2.0):
            document = msgspec.convert(answer.document(), _Document)
            lists = {"nccl": document.nccl, "models": document.models}
            printable = {name: tuple(map(printable_line, texts)) for name, texts in lists.items()}
            return {"facts": decode_facts(document.facts), **printable}
    except NodeError as error:
        return {"problem": str(error)}
    except (ValueError, RecursionError, CpuLimitError) as error:
        return {"problem": printable_line(f"unreadable answer: {type(error).__name__}: {error}")}


def decode_facts(document: Any) -> Facts:
    """Decode untrusted facts from another machine.

    Raises:
        ValueError: The document does not have the schema of facts.
    """
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"facts: expected the schema {SCHEMA!r}, found {schema!r}")
    return msgspec.convert(document, Facts)
