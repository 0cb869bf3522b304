"""Collect the facts of a job's nodes over ssh, a command or Ray, and decode their answers.

`collect_nodes` returns the nodes. Hosts are numbered by rank, in the order of their list; Ray's nodes are numbered in
the order of their addresses.

Answers are untrusted: one that cannot be decoded becomes the node's `problem`.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from diagnostics.collect.facts import Facts
from diagnostics.collect.remote import Answer, printable_line
from diagnostics.cpu_limit import CpuLimitError, cpu_limit
from diagnostics.fixes import join_some
from diagnostics.multi_node_options import NodeOptions, query_nodes
from diagnostics.output import progress

MAX_NAMES = 8


@dataclass(frozen=True)
class Node:
    """One node of the job.

    Attributes:
        label: The node's name in findings: "rank 3 (d)", "ranks 0-7 (a)", or with Ray "node 3 (10.0.0.4)".
        facts: Facts of the node; None if it was not examined.
        nccl: Releases of NCCL outside Python's packages.
        models: Models in the node's hub cache.
        problem: Reason why the node was not examined, in one line.
        dead: Whether Ray reports the node as dead.
    """

    label: str
    facts: Facts | None = None
    nccl: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    problem: str = ""
    dead: bool = False

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
    arguments = {"prefix": "" if options.ray else prefix}
    answers = query_nodes(options, "diagnostics.collect.facts", "collect_node", arguments, prefix)
    by_slot = not options.ray and all(answer.slots for answer in answers)
    nodes, rank = [], 0
    for answer in answers:
        last = rank + (answer.slots if by_slot else 1) - 1
        number = f"ranks {rank}-{last}" if last > rank else f"{'node' if options.ray else 'rank'} {rank}"
        nodes.append(Node(f"{number} ({answer.name})", dead=answer.dead, **read_answer(answer)))
        rank = last + 1
    if options.ray:
        return nodes, "environment variables and limits are those of Ray's workers on each node"
    order = "ranks are counted slot by slot" if by_slot else "ranks are counted one a host"
    return nodes, f"{order}; variables and limits are those of this connection, which a launcher may change"


class _Document(msgspec.Struct):
    """What `collect_node` returns on a node."""

    facts: Facts
    nccl: list[str]
    models: list[str]


def read_answer(answer: Answer) -> dict[str, Any]:
    """Return the fields of Node that an answer fills: `facts`, `nccl` and `models`, or else `problem`."""
    if answer.problem:
        return {"problem": answer.problem}
    try:
        with cpu_limit("reading the answer", 2.0):
            document = msgspec.convert(answer.document, _Document)
            lists = {"nccl": document.nccl, "models": document.models}
            printable = {name: tuple(map(printable_line, texts)) for name, texts in lists.items()}
            return {"facts": document.facts, **printable}
    except (ValueError, RecursionError, CpuLimitError) as error:
        return {"problem": printable_line(f"unreadable answer: {error}")}
