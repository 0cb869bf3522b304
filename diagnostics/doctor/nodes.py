"""Query the nodes of a job over ssh or Ray, decode the facts they send, and hide their names in shared reports."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import msgspec

from diagnostics import UserError
from diagnostics.collect import remote
from diagnostics.collect.facts import SCHEMA, Facts
from diagnostics.collect.names import is_package_version, may_be_parsed
from diagnostics.collect.packages import Environment
from diagnostics.collect.remote import Answer, NodeError, RemoteError, one_line
from diagnostics.findings import Report
from diagnostics.node_options import NodeOptions
from diagnostics.node_options import query_nodes as query_members
from diagnostics.output import progress
from diagnostics.output.redact import redact

MAX_NODES = 8
# Fields with fixed words, in which a host's name is a coincidence.
_FIXED_WORDS = {"check", "code", "certainty", "known_by", "outcome", "standing", "tool"}
_METADATA_FOLDER = re.compile(r"/(?!.*/\.\.?/)\S.*[.-]info", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Node:
    """A node of the fleet.

    Attributes:
        word: The noun before its number: `rank`, `ranks` or `node`.
        number: That number, as "3" or "6-7".
        name: Its name or address; empty in a shared report.
        facts: Its facts; None if it was not examined.
        nccl: Releases of NCCL outside Python's packages.
        models: Models in its hub cache.
        problem: Why it was not examined, one line.
        reached: Whether it was reached, so that the problem is its own message.
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
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def label(self) -> str:
        """Its name in findings: "rank 3 (d)"."""
        return f"{self.word} {self.number}" + (f" ({self.name})" if self.name else "")


def node_names(members: list[Node], total: int = 0) -> str:
    """Name some nodes; all of them, or without a total at most MAX_NODES."""
    if len(members) == total:
        return "The node that answered" if total == 1 else f"All {total} nodes that answered"
    names = ", ".join(node.label for node in members[: total or MAX_NODES])
    rest = len(members) - MAX_NODES
    return names + (f" and {rest} more" if not total and rest > 0 else "")


def query_nodes(options: NodeOptions, prefix: str) -> tuple[list[Node], str]:
    """Query the nodes; return them with a note on how they were reached.

    Raises:
        UserError: The list, the command or the cluster cannot be used.
    """
    progress.update("querying nodes")
    try:
        members = query_members(
            options,
            lambda of_host: remote.collect_program(of_host or ("" if options.ray else prefix)),
            prefix,
        )
    except RemoteError as error:
        raise UserError(str(error)) from None
    slots = not options.ray and all(member.slots for member in members)
    nodes, rank = [], 0
    for position, member in enumerate(members):
        word, number = "rank", str(rank)
        if options.ray:
            word = "node"
        elif slots and member.slots > 1:
            word, number = "ranks", f"{rank}-{rank + member.slots - 1}"
        rank += member.slots if slots else 1
        answer = read_answer(member.answer)
        secrets = tuple(filter(None, member.secrets))
        nodes.append(Node(position, word, number, member.name, dead=member.dead, secrets=secrets, **answer))
    if options.ray:
        return nodes, "environment variables and limits are those of Ray's workers on each node"
    counted = "slot by slot" if slots else "one a host"
    return nodes, (
        f"ranks are counted in the order of the list, {counted}; environment variables and limits are those of this "
        "connection, which a launcher may change"
    )


def read_answer(answer: Answer) -> dict[str, Any]:
    """Return what an answer contains, as fields of Node; a node without facts keeps its problem."""
    try:
        document = answer.document()
        return {
            "facts": decode_facts(document["facts"]), "nccl": tuple(map(one_line, document["nccl"])),
            "models": tuple(map(one_line, document["models"])),
        }  # fmt: skip
    except NodeError as error:
        return {"problem": str(error), "reached": not answer.problem}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return {"problem": one_line(f"unreadable answer: {type(error).__name__}: {error}"), "reached": True}


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
    """Drop packages that this machine would have refused: names and versions become words of commands."""
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
