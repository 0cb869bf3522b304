"""Run one of our programs on each live node of a Ray cluster, as one Ray task per node; no cluster is started.

A child process of the Python that has Ray joins the cluster, starts the tasks and prints the nodes with their output as
one line of JSON. `query_ray` returns the answers. `check_address` refuses an address at which nothing listens.
"""

import json
import os
import re
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diagnostics import process
from diagnostics.collect import remote
from diagnostics.collect.remote import Answer, NodeError, Program, RemoteError, printable_line
from diagnostics.output.redact import remember_host

# Joining a cluster takes seconds, and so does the first worker of a node. A socket connects at once or not at all.
JOIN_LIMIT_S, CONNECT_LIMIT_S = 60.0, 5.0
_MAX_OUTPUT_BYTES = 256 << 20
ADDRESS = re.compile(r"(?:ray://)?([\w.-]+|\[[0-9A-Fa-f:]+\]):(\d{1,5})", re.ASCII)
# Run by the Python that has Ray. It joins a cluster and never starts one.
_RAY_PROGRAM = """\
import importlib, subprocess
def collect(program, limit_s):
    done = subprocess.run([sys.executable, "-"], input=program.encode(), stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, timeout=limit_s)
    return done.stdout[: 8 * 2**20].decode("utf-8", errors="replace")
def query_nodes(address, program, limit_s):
    ray = importlib.import_module("ray")
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    ray.init(address=address, log_to_driver=False, logging_level="CRITICAL", namespace="grpo-doctor")
    task, tasks, nodes = ray.remote(num_cpus=0, max_retries=0)(collect), {}, []
    for node in ray.nodes():
        nodes.append({"id": node["NodeID"], "address": str(node.get("NodeManagerAddress", "")),
                      "host": str(node.get("NodeManagerHostname", "")), "port": int(node.get("NodeManagerPort") or 0)})
        if node["Alive"]:
            there = strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            tasks[node["NodeID"]] = task.options(scheduling_strategy=there).remote(program, limit_s)
        else:
            nodes[-1]["dead"] = str(node.get("DeathReasonMessage") or "without a reason")
    done = ray.wait(list(tasks.values()), num_returns=len(tasks), timeout=limit_s)[0] if tasks else []
    for node in nodes:
        if node["id"] in tasks:
            try:
                answered = tasks[node["id"]] in done
                node["text"] = ray.get(tasks[node["id"]]) if answered else ""
                node["problem"] = "" if answered else "no answer within %%g s" %% limit_s
            except Exception as error:
                node["problem"] = "%%s: %%s" %% (type(error).__name__, error)
    say(nodes=nodes)
try:
    query_nodes(**json.loads(%(options)r))
except ImportError as error:
    say(error="Ray cannot be imported by %%s: %%s" %% (sys.executable, error))
except Exception as error:
    say(error="%%s: %%s" %% (type(error).__name__, error))
"""


def query_ray(python: str, address: str, program: Program, limit_s: float = remote.LIMIT_S) -> list[Answer]:
    """Run a program on each live node of a Ray cluster; return an answer for each node, also for dead ones.

    Args:
        python: The interpreter that has Ray, of the cluster's release.
        address: Address for `ray.init`; "auto" for the one that RAY_ADDRESS or this machine names.
        program: The program that runs on each node.
        limit_s: Time limit for all nodes together, without joining the cluster.

    Raises:
        RemoteError: Python or Ray cannot be started, no cluster is at the address, or its nodes could not be listed.
    """
    check_address(address)
    options = {"address": address, "program": program.program_text(limit_s), "limit_s": limit_s}
    text = (remote.PROGRAM_START + _RAY_PROGRAM) % {"mark": remote.MARK, "options": json.dumps(options)}
    disabled = dict.fromkeys(("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"), "0")
    environ = {**os.environ, **disabled, "PYTHONSAFEPATH": "1"}
    environ.pop("PYTHONPATH", None)
    command, timeout_s = [python, "-"], limit_s + JOIN_LIMIT_S
    limits: dict[str, Any] = {"timeout_s": timeout_s, "max_output": _MAX_OUTPUT_BYTES}
    # In an empty folder, because Ray's workers can import modules of the folder that the program runs in.
    with tempfile.TemporaryDirectory(prefix="grpo-doctor-") as folder:
        try:
            done = process.run(command, stdin=text, env=environ, cwd=Path(folder), **limits)
        except OSError as error:
            raise RemoteError(f"{python}: cannot be started: {error.strerror or error}") from None
    if remote.MARK not in done.output:
        raise RemoteError(f"--ray {address}: {remote.describe_end(command, done, timeout_s)}")
    try:
        nodes = Answer(done.output).document()["nodes"]
        ordered = sorted(nodes, key=lambda node: (node["address"], node["port"], node["id"]))
        return [_answer(node) for node in ordered]
    except NodeError as error:
        raise RemoteError(str(error)) from None
    except (KeyError, TypeError) as error:
        raise RemoteError(printable_line(f"--ray {address}: unreadable answer: {error!r}")) from None


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


def _answer(node: Mapping[str, Any]) -> Answer:
    """Return the answer of a node that the Ray program printed."""
    problem = f"Ray reports it dead: {node['dead']}" if "dead" in node else node["problem"]
    remember_host(node["address"])
    remember_host(node["host"])
    return Answer(
        node.get("text", ""), printable_line(problem), printable_line(node["address"]), dead="dead" in node
    )
