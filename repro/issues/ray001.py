"""RAY001: verl's executor looks its workers up by name from vLLM's engine process, and finds none.

In the engine process `ExternalRayDistributedExecutor` calls `ray.init(namespace=...)` without an address, lists the
named actors, and asserts that there are as many as workers. The count is zero for five different reasons, and the
text is the same each time. Each reason is a trigger here. What tells them apart is in the line that the repro adds to
every attempt: what the engine process had in its environment, which cluster it is in and which one its server is in,
the prefix it looked for, the names it was to find, those it saw, and those in all namespaces.

It needs Linux and an environment of its own: `repro/ray.txt` with verl and vLLM beside it, both without their
dependencies (vLLM's CUDA extension can't load on a machine without CUDA, and isn't used):

    uv venv --python 3.11 ENV
    uv pip install --python ENV/bin/python -r repro/ray.txt
    uv pip install --python ENV/bin/python --no-deps vllm==0.8.5.post1 verl==0.4.1
    ENV/bin/python -m repro run RAY001 --timeout 300 --trigger no_address --mitigation explicit_address

PyTorch is its CPU build there. An attempt takes half a minute of CPU time, most of it imports of verl and vLLM.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from repro import upstream
from repro.base import InapplicableError, Trigger, Work, repro
from repro.drivers import elsewhere
from repro.drivers.verl_rollout import ELSEWHERE, NAMES, NAMESPACE, PREFIX, RIGHT, WRONG, RolloutPlan

ASSERTION = "assert len(actor_names) == vllm_dp_size * vllm_tp_size"
FILE = "verl/workers/rollout/vllm_rollout/vllm_async_server.py"
# init_worker, init_device and load_model: what verl's executor asks of each worker once it has found them.
CALLS = 3
_SPAWN = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}  # as in verl's own images
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # from Ray 2.60 on a token in the home folder would be made
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # everything listens on 127.0.0.1
    "RAY_worker_niceness": "0",  # or a busy machine lets the actors wait
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}

PLANS = {
    "no_address": RolloutPlan(server_env=_SPAWN),
    "other_namespace": RolloutPlan(workers_namespace=ELSEWHERE),
    "weak_handles": RolloutPlan(handles="weak"),
    "wrong_address": RolloutPlan(server_env=_SPAWN | {"RAY_ADDRESS": WRONG}, other_cluster=True),
    "other_temp_dir": RolloutPlan(server_env=_SPAWN, head="elsewhere"),
}
_FOUND = "the right cluster is found here"
_SAME = "the workers are registered in the server's namespace here"
_KEPT = "the handles are kept here"
_AS_BEFORE = "nothing differs from no_address there"
_CLUSTER = ("no_address", "wrong_address", "other_temp_dir")
_WITHIN = ("other_namespace", "weak_handles")
# Why a mitigation has nothing to change under a trigger.
_NOTHING = {
    "address_in_driver": dict.fromkeys(_WITHIN, _FOUND) | {"wrong_address": _AS_BEFORE},
    "init_first": dict.fromkeys(_WITHIN, _FOUND) | dict.fromkeys(_CLUSTER[1:], _AS_BEFORE),
    "unset_spawn": dict.fromkeys(_WITHIN, "it is not set here"),
    "running_head": dict.fromkeys(_WITHIN, _FOUND),
    "same_namespace": dict.fromkeys((*_CLUSTER, "weak_handles"), _SAME),
    "kept_handles": dict.fromkeys((*_CLUSTER, "other_namespace"), _KEPT),
    "detached_workers": dict.fromkeys((*_CLUSTER, "other_namespace"), _KEPT),
    "newer_verl": dict.fromkeys((*_CLUSTER, *_WITHIN), "it is another release: run this there"),
}


def make_plan(trigger: str, mitigation: str | None) -> RolloutPlan:
    """Return the job's plan under a mitigation.

    Raises:
        InapplicableError: the mitigation has nothing to change there.
    """
    plan = PLANS[trigger]
    reason = _NOTHING.get(mitigation or "", {}).get(trigger)
    if reason:
        raise InapplicableError(reason)
    inputs = plan.server_env
    changed: dict[str, dict[str, Any]] = {
        "explicit_address": {"server_env": inputs | {"RAY_ADDRESS": RIGHT}},
        "address_in_driver": {"driver_address": True},
        "init_first": {"init_first": True},
        "unset_spawn": {"server_env": {name: value for name, value in inputs.items() if name not in _SPAWN}},
        "running_head": {"head": "default"},
        "same_namespace": {"workers_namespace": NAMESPACE},
        "kept_handles": {"handles": "kept"},
        "detached_workers": {"handles": "detached"},
    }
    return replace(plan, **changed[mitigation]) if mitigation else plan


def work(report: Mapping[str, Any]) -> Work:
    """Make of a job's report what was done.

    Raises:
        ElsewhereError: upstream's code ended the engine process.
    """
    if "broken" in report:
        raise RuntimeError(report["broken"])
    failure = report.get("failure")
    if failure:
        raise elsewhere.failed(failure, describe(report))
    requests = [(name, len(calls)) for name, calls in report["asked"].items() if calls]
    return Work(dict.fromkeys(NAMES, CALLS), requests, note=describe(report), nouns=("workers", "calls"))


def cause(report: Mapping[str, Any]) -> str:
    """Name the reason for which workers were not found, from what the engine process saw."""
    result = [name for name in report.get("everywhere", ()) if name.partition("/")[2] in NAMES]
    if "engine_address" not in report:
        return "the engine process joined no cluster"
    if report["engine_address"] != report["server_address"]:
        return "the engine process is in another cluster than its server"
    if all(name in report["names"] for name in NAMES):
        return "the workers are there"
    if result:
        return f"the workers are in another namespace ({result[0].partition('/')[0]})"
    return "the right cluster, and no such actor in any namespace: the workers are gone"


def describe(report: Mapping[str, Any]) -> str:
    """Return the line to print in the engine process when this failure is met."""
    engine = ", ".join(f"{name}={value or '(unset)'}" for name, value in report["engine_environment"].items())
    listed = {key: ", ".join(report.get(key, ())) or "none" for key in ("names", "everywhere")}
    return (
        f"{cause(report)}: {engine}; engine's cluster {report.get('engine_address', 'none')}, "
        f"server's {report['server_address']}; prefix {PREFIX}WorkerDict in namespace {NAMESPACE}, "
        f"expected {', '.join(NAMES)}; seen {listed['names']}; in all namespaces {listed['everywhere']}"
    )


def _carry_out(trigger: str, mitigation: str | None) -> Work:
    """Carry out the plan in a separate driver process, and read its report."""
    plan = make_plan(trigger, mitigation)
    cleared = {"RAY_ADDRESS", "RAY_TMPDIR", "VLLM_WORKER_MULTIPROC_METHOD", "VLLM_USE_V1"}
    environment = {name: value for name, value in os.environ.items() if name not in cleared} | _SETTINGS
    return work(elsewhere.run_program("repro.drivers.verl_job", asdict(plan), environment))


repro(
    "RAY001",
    assertion=ASSERTION,
    distributions=("verl",),
    simulated=(
        "the rollout workers (they count calls and load no model)",
        "AsyncvLLMServer up to the engine's start (mirrored, with vLLM's own get_mp_context)",
        "the model's configuration (vLLM's own VllmConfig without a model)",
    ),
    triggers=[
        Trigger("no_address", partial(_carry_out, "no_address")),
        Trigger("other_namespace", partial(_carry_out, "other_namespace")),
        Trigger("weak_handles", partial(_carry_out, "weak_handles")),
        Trigger("wrong_address", partial(_carry_out, "wrong_address")),
        Trigger("other_temp_dir", partial(_carry_out, "other_temp_dir")),
    ],
    mitigations={
        "explicit_address": "RAY_ADDRESS of the running cluster in the server actor's environment",
        "address_in_driver": "RAY_ADDRESS set in the driver's environment only",
        "init_first": "ray.init(address=...) in the engine process before verl's own",
        "unset_spawn": "VLLM_WORKER_MULTIPROC_METHOD left unset for the server",
        "running_head": ("`ray start --head` in the default folder before the job", "verl-project/verl#1642"),
        "same_namespace": "the workers registered in the server's namespace",
        "kept_handles": ("the driver keeps the handles that made the workers", "verl-project/verl#1443"),
        "detached_workers": 'the workers made with lifetime="detached"',
        "newer_verl": "verl 0.6.0 or newer, without this executor",
    },
    inapplicable=lambda: upstream.lacks(FILE, ASSERTION, names=("verl",)),
)
