"""Run one of our programs on each live node of a Ray cluster, as one Ray task per node; no cluster is started.

A child process of the Python that has Ray joins the cluster, starts the tasks and prints their output as lines of JSON.
`query_ray` returns a member for each node. `check_address` refuses an address at which nothing listens.
"""

import json
import os
import re
import socket
import tempfile
from collections import Counter
from pathlib import Path

import msgspec

from diagnostics import process, safe_io
from diagnostics.collect import remote
from diagnostics.collect.remote import Answer, Member, Program, RemoteError, printable_line

# Joining a cluster takes seconds, and so does the first worker of a node. A socket connects at once or not at all.
JOIN_LIMIT_S, CONNECT_LIMIT_S = 60.0, 5.0
_RAY_MARK = remote.MARK.replace("node", "ray")
ADDRESS = re.compile(r"(?:ray://)?([\w.-]+|\[[0-9A-Fa-f:]+\]):(\d{1,5})", re.ASCII)
# Run by the Python that has Ray. It joins a cluster and never starts one.
_RAY_PROGRAM = """\
import importlib, subprocess, time
def collect(program, limit_s):
    done = subprocess.run([sys.executable, "-"], input=program.encode(), stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, timeout=limit_s)
    return done.stdout[: 8 * 2**20].decode("utf-8", errors="replace")
def node_document(node):
    return {"id": node["NodeID"], "alive": bool(node["Alive"]), "address": str(node.get("NodeManagerAddress", "")),
            "host": str(node.get("NodeManagerHostname", "")), "port": int(node.get("NodeManagerPort") or 0),
            "reason": str(node.get("DeathReasonMessage") or "")}
def main(options):
    try:
        ray = importlib.import_module("ray")
        strategies = importlib.import_module("ray.util.scheduling_strategies")
    except ImportError as error:
        return say(problem="Ray cannot be imported by %%s: %%s" %% (sys.executable, error))
    try:
        ray.init(address=options["address"], log_to_driver=False, logging_level="CRITICAL", namespace="grpo-doctor")
    except Exception as error:
        return say(problem="%%s: %%s" %% (type(error).__name__, error))
    nodes = [node_document(node) for node in ray.nodes()]
    say(nodes=nodes)
    task, pending = ray.remote(num_cpus=0, max_retries=0)(collect), {}
    for node in nodes:
        if node["alive"]:
            there = strategies.NodeAffinitySchedulingStrategy(node["id"], soft=False)
            reference = task.options(scheduling_strategy=there).remote(options["program"], options["limit_s"])
            pending[reference] = node["id"]
    end = time.monotonic() + options["limit_s"]
    while pending and end > time.monotonic():
        done, _ = ray.wait(list(pending), num_returns=1, timeout=max(0.1, end - time.monotonic()))
        for item in done:
            node = pending.pop(item)
            try:
                say(id=node, text=ray.get(item))
            except Exception as error:
                say(id=node, problem="%%s: %%s" %% (type(error).__name__, error))
    for item, node in pending.items():
        ray.cancel(item, force=True)
        say(id=node, problem="no answer within %%g s" %% options["limit_s"])
    ray.shutdown()
main(json.loads(%(options)r))
"""


class _Node(msgspec.Struct):
    """A node as Ray lists it."""

    id: str
    alive: bool
    address: str
    host: str
    port: int
    reason: str


class _Line(msgspec.Struct):
    """A line of the Ray program: the list of nodes, a node's answer, or a problem of one node or of all nodes."""

    nodes: list[_Node] | None = None
    id: str = ""
    text: str | None = None
    problem: str | None = None


def query_ray(python: str, address: str, program: Program, limit_s: float = remote.LIMIT_S) -> list[Member]:
    """Run a program on each live node of a Ray cluster; return a member for each node, also for dead ones.

    Args:
        python: The interpreter that has Ray, of the cluster's release.
        address: Address for `ray.init`; "auto" for the one that RAY_ADDRESS or this machine names.
        program: The program that runs on each node.
        limit_s: Time limit for all nodes together, without joining the cluster.

    Raises:
        RemoteError: Python or Ray cannot be started, no cluster is at the address, or its nodes could not be listed.
    """
    check_address(address)
    lines = _run_ray_program(python, address, limit_s, program.program_text(limit_s))
    if refused := next((line.problem for line in lines if line.problem is not None and not line.id), None):
        raise RemoteError(printable_line(refused))
    nodes = next((line.nodes for line in lines if line.nodes is not None), None)
    if nodes is None:
        raise RemoteError(f"--ray {address}: Ray did not list its nodes within {JOIN_LIMIT_S:g} s")
    answers = {line.id: line for line in lines if line.id}
    shared = Counter(node.address for node in nodes)
    ordered = sorted(nodes, key=lambda node: (node.address, node.port, node.id))
    return [_member(node, answers.get(node.id), shared[node.address] > 1) for node in ordered]


def check_address(address: str) -> None:
    """Raise RemoteError for `local`, with which Ray starts a cluster, and if nothing listens at HOST:PORT.

    At such an address Ray itself would retry for a minute. Other addresses are not checked.
    """
    if address == "local":
        raise RemoteError("--ray local: expected the address of a running cluster, or auto")
    match = ADDRESS.fullmatch(address)
    if match is None:
        return
    try:
        socket.create_connection((match[1].strip("[]"), int(match[2])), timeout=CONNECT_LIMIT_S).close()
    except (OSError, OverflowError) as error:
        raise RemoteError(f"--ray {address}: no cluster there: {printable_line(str(error))}") from None


def _run_ray_program(python: str, address: str, limit_s: float, program_text: str) -> list[_Line]:
    options = json.dumps({"address": address, "limit_s": limit_s, "program": program_text})
    disabled = dict.fromkeys(("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"), "0")
    environ = {**os.environ, **disabled, "PYTHONSAFEPATH": "1"}
    environ.pop("PYTHONPATH", None)
    program = (remote.PROGRAM_START + _RAY_PROGRAM) % {"mark": _RAY_MARK, "options": options}
    command, timeout_s = [python, "-"], limit_s + JOIN_LIMIT_S
    # In an empty folder, because Ray's workers can import modules of the folder that the program runs in.
    with tempfile.TemporaryDirectory(prefix="grpo-doctor-") as folder:
        try:
            done = process.run(command, stdin=program, env=environ, timeout_s=timeout_s, cwd=Path(folder))
        except OSError as error:
            raise RemoteError(f"{python}: cannot be started: {error.strerror or error}") from None
    results = [line for text in done.output.splitlines() if (line := parse_line(text)) is not None]
    if not results:
        raise RemoteError(printable_line(f"--ray {address}: {remote.describe_end(command, done, timeout_s)}"))
    return results


def parse_line(text: str) -> _Line | None:
    """Parse a line of the Ray program; None for other output on the same stream, and for an unreadable line."""
    if not text.startswith(_RAY_MARK):
        return None
    try:
        safe_io.check_json_size(text)
        return msgspec.json.decode(text.removeprefix(_RAY_MARK), type=_Line)
    except (ValueError, RecursionError):
        return None


def _member(node: _Node, line: _Line | None, shared: bool) -> Member:
    name = f"{node.address}:{node.port}" if shared else node.address
    if not node.alive:
        answer = Answer(problem=f"Ray reports it dead: {printable_line(node.reason) or 'without a reason'}")
    elif line is None or (line.problem is None and line.text is None):
        answer = Answer(problem="Ray did not report the result of the task on it")
    else:
        answer = Answer(line.text or "", printable_line(line.problem or ""))
    return Member(printable_line(name), answer, not node.alive, secrets=(node.address, node.host))
