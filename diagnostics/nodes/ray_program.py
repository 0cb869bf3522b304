"""Run by the examined environment's Python, given on its standard input: asks each living node of a Ray cluster.

One JSON document a line on standard output. Ray is imported by name, since nothing of diagnostics may name it; a
cluster is joined, never started.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from typing import Any

MARK = "grpo-doctor-ray:"


def collect(program: str, limit_s: float) -> str:
    """Runs the collector beside a worker, in its surroundings: its variables, its limits, its Python."""
    done = subprocess.run(
        [sys.executable, "-"],
        input=program.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=limit_s,
        env=dict(os.environ),
        check=False,
    )
    return done.stdout[: 8 * 2**20].decode("utf-8", errors="replace")


def main(options: dict[str, Any]) -> None:
    """Joins the cluster, tells its nodes, and what each living one says within the limit."""
    try:
        ray = importlib.import_module("ray")
        strategies = importlib.import_module("ray.util.scheduling_strategies")
    except ImportError as error:
        _say(problem=f"Ray cannot be imported by {sys.executable}: {error}", missing=True)
        return
    try:
        ray.init(
            address=options["address"], log_to_driver=False, logging_level="CRITICAL", namespace="grpo-doctor"
        )
    except Exception as error:  # noqa: BLE001 - whatever Ray says is what we have to tell
        _say(problem=f"{type(error).__name__}: {error}")
        return
    nodes = [_node(node) for node in ray.nodes()]
    _say(nodes=nodes, ray=ray.__version__)
    task = ray.remote(num_cpus=0, max_retries=0)(collect)
    pending = {}
    started = time.time()
    for node in nodes:
        if node["alive"]:
            there = strategies.NodeAffinitySchedulingStrategy(node["id"], soft=False)
            made = task.options(scheduling_strategy=there).remote(options["program"], options["limit_s"])
            pending[made] = node["id"]
    _gather(ray, pending, started, options["limit_s"])
    ray.shutdown()


def _gather(ray: Any, pending: dict[Any, str], started: float, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while pending and (left := end - time.monotonic()) > 0:
        done, _ = ray.wait(list(pending), num_returns=1, timeout=left)
        for item in done:
            node = pending.pop(item)
            try:
                _say(id=node, text=ray.get(item), started=started, arrived=time.time())
            except Exception as error:  # noqa: BLE001 - a node that dies meanwhile is a result
                _say(id=node, problem=f"{type(error).__name__}: {error}")
    for item, node in pending.items():
        ray.cancel(item, force=True)
        _say(id=node, problem=f"no answer within {limit_s:g} s")


def _node(node: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": node["NodeID"],
        "alive": bool(node["Alive"]),
        "address": str(node.get("NodeManagerAddress", "")),
        "host": str(node.get("NodeManagerHostname", "")),
        "port": int(node.get("NodeManagerPort") or 0),
        "reason": str(node.get("DeathReasonMessage") or ""),
    }


def _say(**document: Any) -> None:
    sys.stdout.write(f"\n{MARK} {json.dumps(document)}\n")
    sys.stdout.flush()
