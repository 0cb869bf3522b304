"""RAY001: start unmodified verl's rollout executor in a vLLM engine process that does not see the Ray workers.

In the engine process `ExternalRayDistributedExecutor` calls `ray.init(namespace=...)` without an address, lists the
named actors, and asserts that there are as many as workers. The count may be zero for five reasons, with the same
message; each reason is a trigger (`PLANS`):

- the engine process has no address, or that of another cluster;
- the cluster's temporary folder is elsewhere;
- the workers are in another namespace, or ended when their handles were dropped.

The detail of an attempt has what distinguishes them: the engine process's environment, the Ray clusters of the engine
process and of its server, the expected prefix and names, and the names that it saw. `RolloutPlan` explains what the
mitigations set.

Simulated: the rollout workers, verl's AsyncvLLMServer up to the engine's start, and the model's configuration.

It needs Linux and a separate environment with `repro/ray.txt`, verl and vLLM. The last two are installed without their
dependencies; vLLM's CUDA extension, which needs CUDA, is not used:

    uv venv --python 3.11 ENV
    uv pip install --python ENV/bin/python -r repro/ray.txt
    uv pip install --python ENV/bin/python --no-deps vllm==0.8.5.post1 verl==0.4.1
    ENV/bin/python -m repro run RAY001 --timeout 300 --trigger no_address --mitigation explicit_address

PyTorch is the CPU build there. An attempt takes half a minute of CPU time, mostly for imports of verl and vLLM.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from repro import upstream
from repro.drivers import verl_rollout
from repro.drivers.verl_rollout import NAMES, NAMESPACE, OTHER_NAMESPACE, PREFIX, RIGHT, WRONG, RolloutPlan
from repro.registry import Tally, Trigger, UpstreamFailureError, repro

ASSERTION = "assert len(actor_names) == vllm_dp_size * vllm_tp_size"
FILE = "verl/workers/rollout/vllm_rollout/vllm_async_server.py"
# verl's executor calls init_worker, init_device and load_model of each worker that it found.
CALLS = 3
_SPAWN = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}  # as in verl's own images
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # from Ray 2.60 on a token in the home folder would be made
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # everything listens on 127.0.0.1
    "RAY_worker_niceness": "0",  # at lower priority the actors starve on a busy machine
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
_CLEARED = {"RAY_ADDRESS", "RAY_TMPDIR", "VLLM_WORKER_MULTIPROC_METHOD", "VLLM_USE_V1"}

PLANS = {
    "no_address": RolloutPlan(server_env=_SPAWN),
    "other_namespace": RolloutPlan(workers_namespace=OTHER_NAMESPACE),
    "weak_handles": RolloutPlan(handles="weak"),
    "wrong_address": RolloutPlan(server_env=_SPAWN | {"RAY_ADDRESS": WRONG}, other_cluster=True),
    "other_temp_dir": RolloutPlan(server_env=_SPAWN, head="elsewhere"),
}


def make_plan(trigger: str, mitigation: str | None) -> RolloutPlan:
    """Return the settings of one attempt: those of the trigger, changed by the mitigation."""
    plan = PLANS[trigger]
    environment = plan.server_env
    changes: dict[str, dict[str, Any]] = {
        "explicit_address": {"server_env": environment | {"RAY_ADDRESS": RIGHT}},
        "address_in_driver": {"driver_address": True},
        "init_first": {"init_first": True},
        "unset_spawn": {"server_env": dict(environment.items() - _SPAWN.items())},
        "running_head": {"head": "default"},
        "same_namespace": {"workers_namespace": NAMESPACE},
        "kept_handles": {"handles": "kept"},
        "detached_workers": {"handles": "detached"},
    }
    return replace(plan, **changes[mitigation]) if mitigation else plan


def count_calls(report: Mapping[str, Any]) -> Tally:
    """Return the tally of workers that received the expected number of calls.

    Raises:
        UpstreamFailureError: Upstream's code raised an error in the engine process.
        RuntimeError: The engine process ended without a report.
    """
    if "broken" in report:
        raise RuntimeError(report["broken"])
    failure = report.get("failure")
    if failure:
        raise UpstreamFailureError(**failure, note=describe(report))
    received = [(name, len(methods)) for name, methods in report["requested"].items() if methods]
    return Tally(dict.fromkeys(NAMES, CALLS), received, note=describe(report), counted="workers are loaded")


def find_cause(report: Mapping[str, Any]) -> str:
    """Return why the workers were not found, or that they are there, by the report of the engine process."""
    elsewhere = [name for name in report.get("everywhere", ()) if name.partition("/")[2] in NAMES]
    if "engine_address" not in report:
        return "the engine process joined no cluster"
    if report["engine_address"] != report["server_address"]:
        return "the engine process is in another cluster than its server"
    if all(name in report["names"] for name in NAMES):
        return "the workers are there"
    if elsewhere:
        return f"the workers are in another namespace ({elsewhere[0].partition('/')[0]})"
    return "the right cluster, and no such actor in any namespace: the workers are gone"


def describe(report: Mapping[str, Any]) -> str:
    """Return a line with the cause and the observations that show it."""
    engine = ", ".join(f"{name}={value or '(unset)'}" for name, value in report["engine_environment"].items())
    names, everywhere = (", ".join(report.get(key, ())) or "none" for key in ("names", "everywhere"))
    return (
        f"{find_cause(report)}: {engine}; engine's cluster {report.get('engine_address', 'none')}, "
        f"server's {report['server_address']}; prefix {PREFIX}WorkerDict in namespace {NAMESPACE}, "
        f"expected {', '.join(NAMES)}; seen {names}; in all namespaces {everywhere}"
    )


def _run_job(trigger: str, mitigation: str | None) -> Tally:
    """Run the verl job with this process as its driver; return the tally of its report."""
    for name in _CLEARED:
        os.environ.pop(name, None)
    os.environ.update(_SETTINGS)
    return count_calls(verl_rollout.run_job(make_plan(trigger, mitigation)))


repro(
    "RAY001",
    assertion=ASSERTION,
    distributions=("verl",),
    simulated=(
        "the rollout workers (they count calls and load no model)",
        "AsyncvLLMServer up to the engine's start (mirrored, with vLLM's own get_mp_context)",
        "the model's configuration (vLLM's own VllmConfig without a model)",
    ),
    triggers=[Trigger(name, partial(_run_job, name)) for name in PLANS],
    inapplicable_reason=lambda: upstream.explain_missing_code(FILE, ASSERTION, names=("verl",)),
)
