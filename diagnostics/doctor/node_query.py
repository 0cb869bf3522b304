"""Collect the facts of a job's nodes over ssh, a command or Ray, and decode their answers.

`collect_nodes` returns the nodes. Hosts are numbered by rank, in the order of their list; Ray's nodes are numbered in
the order of their addresses.

Answers are untrusted (`read_answer`, `decode_facts`): an answer that cannot be decoded, or has a path or name that must
not be a word of a command, becomes the node's `problem`. Packages with an invalid name, version or requirement are
dropped.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from diagnostics.collect import remote
from diagnostics.collect.facts import SCHEMA, Facts
from diagnostics.collect.metadata_validation import is_package_version, is_safe_to_parse
from diagnostics.collect.python_environment import Environment
from diagnostics.collect.remote import Answer, NodeError, printable_line
from diagnostics.cpu_limit import CpuLimitError, cpu_limit
from diagnostics.fixes import join_some
from diagnostics.multi_node_options import NodeOptions, query_nodes
from diagnostics.output import progress

MAX_NAMES = 8
_CONFIG_FILE = re.compile(r"/.*/accelerate/default_config\.(?:ya?ml|json)", re.DOTALL)
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
        prefix: The environment to examine on hosts for which the list names none; with Ray, the one whose Python joins.

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
        answer = read_answer(member.answer, member.prefix or common)
        nodes.append(Node(position, noun, number, member.name, dead=member.dead, secrets=secrets, **answer))
    if options.ray:
        return nodes, "environment variables and limits are those of Ray's workers on each node"
    order = "ranks are counted slot by slot" if by_slot else "ranks are counted one a host"
    return nodes, f"{order}; variables and limits are those of this connection, which a launcher may change"


def read_answer(answer: Answer, prefix: str = "") -> dict[str, Any]:
    """Return the fields of Node that an answer fills: `facts`, `nccl`, `models`, or else `problem` and `reached`.

    Args:
        answer: The answer.
        prefix: The environment that was asked for; empty for that of the node's Python.
    """
    try:
        with cpu_limit("reading the answer", 2.0):
            document = answer.document()
            lists = {name: tuple(map(printable_line, document[name])) for name in ("nccl", "models")}
            return {"facts": decode_facts(document["facts"], prefix), **lists}
    except NodeError as error:
        return {"problem": str(error), "reached": not answer.problem}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, CpuLimitError) as error:
        problem = printable_line(f"unreadable answer: {type(error).__name__}: {error}")
        return {"problem": problem, "reached": True}


def decode_facts(document: Any, prefix: str = "") -> Facts:
    """Decode untrusted facts from another machine; packages with an invalid name, version or requirement are dropped.

    Raises:
        ValueError: The document does not have the schema of facts, is not of the environment `prefix`, or has an
            unexpected path or name that would become a word of a command.
    """
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"facts: expected the schema {SCHEMA!r}, found {schema!r}")
    facts = msgspec.convert(document, Facts)
    for text in _unexpected_words(facts, str(Path(prefix)) if prefix else ""):
        raise ValueError(f"facts: unexpected path, name or version {text!r}")
    return replace(facts, environment=_valid_packages(facts.environment))


def _unexpected_words(facts: Facts, prefix: str) -> Iterator[str]:
    """Yield the paths, names and versions in facts that commands would repeat, and that are not what they claim.

    Our collector makes all paths absolute, except that of an environment that was asked for.
    """
    environment, machine = facts.environment, facts.machine
    link = re.compile(rf"{re.escape(environment.prefix)}/bin/python[\w.-]*")
    paths = [*(disk.path for disk in machine.disks), *(traces.folder for traces in machine.ray)]
    releases = filter(None, (traces.release for traces in machine.ray))
    yield from (path for path in paths if not path.startswith("/"))
    yield from (file.path for file in machine.configs if not _CONFIG_FILE.fullmatch(file.path))
    yield from (path for path, _ in environment.dangling if not link.fullmatch(path))
    yield from (name for name, _ in environment.duplicates if not is_package_version(name, "0"))
    yield from (release for release in releases if not is_package_version("ray", release))
    if environment.prefix != prefix if prefix else not environment.prefix.startswith("/"):
        yield environment.prefix


def _valid_packages(environment: Environment) -> Environment:
    """Drop packages with invalid names, versions or requirements, and list their metadata folders as broken.

    An invalid Python release becomes empty, and paths that are no metadata folders are not listed.
    """
    wrong = {
        name
        for name, package in environment.packages.items()
        if name != package.name
        or not is_package_version(package.name, package.version)
        or not all(map(is_safe_to_parse, (*package.requires, package.requires_python)))
    }
    places = {*environment.broken, *(environment.packages[name].place for name in wrong)}
    return replace(
        environment,
        python=environment.python if is_safe_to_parse(environment.python) else "",
        packages={name: package for name, package in environment.packages.items() if name not in wrong},
        # The printed command removes these folders, so only metadata folders are kept.
        broken=tuple(sorted(place for place in places if _METADATA_FOLDER.fullmatch(place))),
    )
