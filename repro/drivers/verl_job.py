"""Run the driver process of RAY001: start Ray clusters, simulated verl workers, and the server that starts the engine.

Its report has the observations of the engine process, and the calls that each worker received.
"""

from __future__ import annotations

import contextlib
import os
import select
import tempfile
from typing import Any

from repro.drivers import verl_rollout
from repro.drivers.verl_rollout import NAMES, NAMESPACE, RIGHT, WRONG, RolloutPlan, start_head


def run_job(plan: RolloutPlan) -> dict[str, Any]:
    """Start the clusters of a plan, and the workers and the server in one of them; return the report."""
    import ray

    with contextlib.ExitStack() as stack:
        addresses = {}
        if plan.other_cluster:
            addresses[WRONG] = stack.enter_context(start_head(tempfile.mkdtemp(prefix="o-")))
        options: dict[str, Any] = {
            "num_cpus": 1,
            "include_dashboard": False,
            "object_store_memory": 100 * 2**20,
        }
        if plan.head:
            folder = tempfile.mkdtemp(prefix="e-") if plan.head == "elsewhere" else None
            address = stack.enter_context(start_head(folder))
            options = {"address": address}
            if plan.driver_address:
                os.environ["RAY_ADDRESS"], options = address, {}
        ray.init(namespace=NAMESPACE, log_to_driver=True, **options)
        stack.callback(ray.shutdown)
        addresses[RIGHT] = ray.get_runtime_context().gcs_address
        if plan.driver_address:
            os.environ["RAY_ADDRESS"] = addresses[RIGHT]
        return _start_engine(plan, addresses)


def _start_engine(plan: RolloutPlan, addresses: dict[str, str]) -> dict[str, Any]:
    """Start workers and server, and let the server start the engine process; return the report."""
    import ray

    workers = _start_workers(plan)
    environment = {name: addresses.get(value, value) for name, value in plan.server_env.items()}
    server = (
        ray.remote(verl_rollout.ServerStandIn)
        .options(num_cpus=0, runtime_env={"env_vars": environment})
        .remote()
    )
    report: dict[str, Any] = ray.get(server.start_engine.remote(addresses[RIGHT] if plan.init_first else ""))
    report["requested"] = {}
    for name, worker in zip(NAMES, workers, strict=True):
        with contextlib.suppress(ray.exceptions.RayActorError):
            report["requested"][name] = ray.get(worker.requested_methods.remote())
    return report


def _start_workers(plan: RolloutPlan) -> list[Any]:
    """Start the named workers; return their handles, which are the original ones or looked up by name, as in the plan.

    With "weak" handles the workers end here, because Ray ends an actor when its original handle is dropped.
    """
    import ray

    created = []
    for name in NAMES:
        options = {"name": name, "num_cpus": 0}
        if plan.workers_namespace != NAMESPACE:
            options["namespace"] = plan.workers_namespace
        if plan.handles == "detached":
            options["lifetime"] = "detached"
        created.append(ray.remote(verl_rollout.WorkerStandIn).options(**options).remote())
    pids = ray.get([worker.pid.remote() for worker in created])
    if plan.handles == "kept":
        return created
    processes = [os.pidfd_open(pid) for pid in pids]
    looked_up = [ray.get_actor(name) for name in NAMES]
    del created
    if plan.handles == "weak":
        for process in processes:  # a pidfd is readable once the process has ended
            select.select([process], [], [])
    return looked_up
