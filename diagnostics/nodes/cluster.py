"""Asks the nodes of a running Ray cluster, through a child process of the environment that has Ray."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics import given, processes
from diagnostics.collect.shapes import problem
from diagnostics.nodes import ray_program
from diagnostics.nodes.answer import Member, NodeAnswer, clock_of, one_line
from diagnostics.nodes.program import program

if TYPE_CHECKING:
    import argparse

    from diagnostics.nodes.program import Carried

# Joining a cluster takes seconds, and so does the first worker of a node.
JOINING_S = 60.0
KNOCKING_S = 5.0
# What ray_program says, by the key that tells what it is.
_NODE = {"id": str, "alive": bool, "address": str, "host": str, "port": int, "reason": str}
_SHAPES = {
    "nodes": {"nodes": [_NODE]},
    "problem": {"problem": str, "id?": str},
    "text": {"id": str, "text": str, "started": float, "arrived": float},
}
_PLAIN = re.compile(r"(?:ray://)?([\w.-]+|\[[0-9A-Fa-f:]+\]):(\d{1,5})", re.ASCII)


class ClusterError(ValueError):
    """Raised when the cluster can't be asked at all; the message is one line."""


def ask(python: str, address: str, limit_s: float, carried: Carried) -> list[Member]:
    """Every node that the cluster knows, the dead ones too.

    Args:
        python: The interpreter that has Ray, of the cluster's own release.
        address: As `ray.init` takes it; "auto" for the one that RAY_ADDRESS or this machine names.
        limit_s: Seconds for all nodes together, joining not counted.
        carried: What runs on each.

    Raises:
        ClusterError: Ray is not there, or there is no cluster at the address.
    """
    _knock(address)
    documents = _documents(python, address, limit_s, program(carried, limit_s))
    refused = next((item for item in documents if "problem" in item and "id" not in item), None)
    if refused:
        raise ClusterError(one_line(refused["problem"]))
    nodes = next((item["nodes"] for item in documents if "nodes" in item), None)
    if nodes is None:
        raise ClusterError(f"--ray {address}: Ray did not say which nodes there are within {JOINING_S:g} s")
    said = {item["id"]: item for item in documents if "id" in item}
    ordered = sorted(nodes, key=lambda node: (node["address"], node["port"], node["id"]))
    shared = Counter(node["address"] for node in nodes)
    return [_member(node, said.get(node["id"]), shared[node["address"]] > 1) for node in ordered]


def chosen(options: argparse.Namespace, prefix: str, carried: Carried) -> list[Member]:
    """Asks the cluster that the command line names, through the Python that it names or that of an environment.

    Raises:
        ClusterError: Ray is not there, or there is no cluster at the address.
    """
    python = options.host_python or (f"{prefix}/bin/python" if prefix else sys.executable)
    print(f"asking Ray's nodes, at most {options.node_limit:g} s after joining", file=sys.stderr)
    return ask(python, options.ray, options.node_limit, carried)


def _knock(address: str) -> None:
    """Ray tries for a minute where nothing listens; that is found out here at once."""
    match = _PLAIN.fullmatch(address)
    if match is None:
        return
    try:
        socket.create_connection((match[1].strip("[]"), int(match[2])), timeout=KNOCKING_S).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"--ray {address}: no cluster there: {one_line(str(error))}") from None


def _documents(python: str, address: str, limit_s: float, text: str) -> list[dict[str, Any]]:
    options = {"address": address, "limit_s": limit_s, "program": text}
    source = Path(ray_program.__file__).read_text(encoding="utf-8")
    program = f"{source}\nmain(json.loads({json.dumps(json.dumps(options))}))\n"
    with tempfile.TemporaryDirectory(prefix="grpo-doctor-") as folder:
        log = Path(folder) / "ray.log"
        try:
            done = processes.run(
                [python, "-"],
                environment={
                    **os.environ,
                    "RAY_USAGE_STATS_ENABLED": "0",
                    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
                },
                log=log,
                timeout_s=limit_s + JOINING_S,
                folder=Path.cwd(),
                given=program,
            )
        except OSError as error:
            raise ClusterError(f"{python}: cannot be started: {error.strerror or error}") from None
        mark = ray_program.MARK
        lines = [line.removeprefix(mark) for line in done.output.splitlines() if line.startswith(mark)]
        found = [document for line in lines if (document := _document(line)) is not None]
        if not found:
            last = processes.tail(log).strip().splitlines()[-1:] or ["it said nothing"]
            why = (
                f"no answer within {limit_s + JOINING_S:g} s" if done.timed_out else f"ended with {done.code}"
            )
            raise ClusterError(one_line(f"--ray {address}: {python} {why}: {last[0]}"))
    return found


def _document(line: str) -> dict[str, Any] | None:
    """What one line tells, None where it is nothing that our own program says: a node's words are in it."""
    try:
        told = given.parsed(line)
    except (ValueError, RecursionError):
        return None
    shape = next((each for key, each in _SHAPES.items() if isinstance(told, dict) and key in told), None)
    return None if shape is None or problem(told, shape) else dict(told)


def _member(node: dict[str, Any], said: dict[str, Any] | None, shared: bool) -> Member:
    name = f"{node['address']}:{node['port']}" if shared else node["address"]
    if not node["alive"]:
        reason = one_line(node["reason"]) or "Ray does not say why"
        answer = NodeAnswer(problem=f"dead, says Ray: {reason}")
    elif said is None:
        answer = NodeAnswer(problem="Ray did not tell what became of the task on it")
    elif "problem" in said:
        answer = NodeAnswer(problem=one_line(said["problem"]))
    else:
        answer = _answer(said)
    secrets = tuple(filter(None, (node["address"], node["host"])))
    return Member(one_line(name), answer, not node["alive"], secrets)


def _answer(said: dict[str, Any]) -> NodeAnswer:
    clocks = [there for line in said["text"].splitlines()[:200] if (there := clock_of(line)) is not None]
    stamped = (clocks[0], float(said["arrived"])) if clocks else None
    return NodeAnswer(text=said["text"], started=said["started"], clock=stamped)
