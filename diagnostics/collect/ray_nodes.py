"""Run a program on each live node of a Ray cluster, as one Ray task per node; no cluster is started.

`query_ray` returns the answers. It starts the Python that has Ray with `run_on_nodes`, which joins the cluster, runs
the tasks and returns their output. `check_address` refuses an address at which nothing listens.
"""

import importlib
import os
import re
import socket
import tempfile
from pathlib import Path
from typing import Any

from diagnostics.collect import remote
from diagnostics.collect.remote import Answer, RemoteError, printable_line
from diagnostics.output.redact import remember_host

# Joining a cluster takes seconds, and so does the first worker of a node. A socket connects at once or not at all.
JOIN_LIMIT_S, CONNECT_LIMIT_S = 60.0, 5.0
_MAX_OUTPUT_BYTES = 256 << 20
ADDRESS = re.compile(r"(?:ray://)?([\w.-]+|\[[0-9A-Fa-f:]+\]):(\d{1,5})", re.ASCII)


def query_ray(python: str, address: str, text: str, limit_s: float) -> list[Answer]:
    """Run a program on each live node of a Ray cluster; return an answer for each node, also for dead ones.

    Args:
        python: The interpreter that has Ray, of the cluster's release.
        address: Address for `ray.init`; "auto" for the one that RAY_ADDRESS or this machine names.
        text: The program that runs on each node.
        limit_s: Time limit for all nodes together, without joining the cluster.

    Raises:
        RemoteError: Python or Ray cannot be started, no cluster is at the address, or its nodes could not be listed.
    """
    check_address(address)
    options = {"address": address, "text": text, "limit_s": limit_s}
    joining = remote.program_text(__name__, "run_on_nodes", options, limit_s + JOIN_LIMIT_S)
    disabled = dict.fromkeys(("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"), "0")
    environ = {**os.environ, **disabled, "PYTHONSAFEPATH": "1"}
    environ.pop("PYTHONPATH", None)
    # In an empty folder, because Ray's workers can import modules of the folder that the program runs in.
    with tempfile.TemporaryDirectory(prefix="grpo-doctor-") as folder:
        limits: dict[str, Any] = {"max_output": _MAX_OUTPUT_BYTES, "env": environ, "cwd": Path(folder)}
        answer = remote.run_program([python, "-"], joining, limit_s + JOIN_LIMIT_S, **limits)
    if answer.problem:
        raise RemoteError(f"--ray {address}: {python}: {answer.problem}")
    try:
        return [_read_node(**node) for node in answer.document["nodes"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise RemoteError(printable_line(f"--ray {address}: unreadable answer: {error!r}")) from None


def run_on_nodes(options: dict[str, Any], _folder: str) -> dict[str, Any]:
    """Join a cluster and return the nodes with the output of a program there. The Python that has Ray runs this.

    Args:
        options: `address`, `text` and `limit_s` of `query_ray`.
        _folder: Not used.
    """
    ray = importlib.import_module("ray")
    strategies = importlib.import_module("ray.util.scheduling_strategies")

    def collect(text: str, limit_s: float) -> str:
        # A nested function is sent to the workers with its code; they have no module of ours.
        import subprocess
        import sys

        done = subprocess.run(
            [sys.executable, "-"], input=text.encode(), capture_output=True, timeout=limit_s, check=False
        )
        return done.stdout[: 8 << 20].decode("utf-8", "replace")

    limit_s = options["limit_s"]
    ray.init(options["address"], log_to_driver=False, logging_level="CRITICAL", namespace="grpo-doctor")
    task, tasks, nodes = ray.remote(num_cpus=0, max_retries=0)(collect), {}, []
    members = sorted(ray.nodes(), key=lambda node: (node["NodeManagerAddress"], node["NodeManagerPort"]))
    for node in members:
        if node["Alive"]:
            there = strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            tasks[node["NodeID"]] = task.options(scheduling_strategy=there).remote(options["text"], limit_s)
    done = ray.wait([*tasks.values()], num_returns=len(tasks), timeout=limit_s)[0] if tasks else []
    for node in members:
        started, output, problem = tasks.get(node["NodeID"]), "", f"no answer within {limit_s:g} s"
        if started is None:
            problem = f"Ray reports it dead: {node.get('DeathReasonMessage') or 'without a reason'}"
        elif started in done:
            try:
                output, problem = ray.get(started), ""
            except ray.exceptions.RayError as error:
                problem = f"{type(error).__name__}: {error}"
        names = {"address": node["NodeManagerAddress"], "host": node["NodeManagerHostname"]}
        nodes.append(names | {"output": output, "problem": problem, "dead": started is None})
    return {"nodes": nodes}


def _read_node(address: str, host: str, output: str, problem: str, dead: bool) -> Answer:
    """Return the answer of a node that `run_on_nodes` listed."""
    remember_host(address)
    remember_host(host)
    return remote.read_output(output, problem, name=printable_line(address), dead=dead)


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
