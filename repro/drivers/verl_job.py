"""Driver process of a verl-like job: start named workers and a server, start the engine, return its report.

`elsewhere.run_program` runs it with a `RolloutPlan`.
"""

from __future__ import annotations

import contextlib
import os
import select
import tempfile
from typing import Any

from repro.drivers import elsewhere, verl_rollout
from repro.drivers.verl_rollout import NAMES, NAMESPACE, RIGHT, WRONG, RolloutPlan, start_head


def run(plan: RolloutPlan) -> dict[str, Any]:
    """Start the clusters and the job of a plan; return the workers that the engine found, and the calls they got."""
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
            if plan.driver_address:
                os.environ["RAY_ADDRESS"], options = address, {}
            else:
                options = {"address": address}
        ray.init(namespace=NAMESPACE, log_to_driver=True, **options)
        stack.callback(ray.shutdown)
        addresses[RIGHT] = ray.get_runtime_context().gcs_address
        if plan.driver_address:
            os.environ["RAY_ADDRESS"] = addresses[RIGHT]
        return _run_job(plan, addresses)


def _run_job(plan: RolloutPlan, addresses: dict[str, str]) -> dict[str, Any]:
    import ray

    workers = _start_workers(plan)
    environment = {name: addresses.get(value, value) for name, value in plan.server_env.items()}
    server = (
        ray.remote(verl_rollout.ServerStandIn)
        .options(num_cpus=0, runtime_env={"env_vars": environment})
        .remote()
    )
    report: dict[str, Any] = ray.get(server.start_engine.remote(addresses[RIGHT] if plan.init_first else ""))
    report["asked"] = {}
    for name, worker in zip(NAMES, workers, strict=True):
        with contextlib.suppress(ray.exceptions.RayActorError):
            report["asked"][name] = ray.get(worker.requested_methods.remote())
    return report


def _start_workers(plan: RolloutPlan) -> list[Any]:
    """Start the named workers; return the kind of handles that the plan asks for."""
    import ray

    built = []
    for name in NAMES:
        options = {"name": name, "num_cpus": 0}
        if plan.workers_namespace != NAMESPACE:
            options["namespace"] = plan.workers_namespace
        if plan.handles == "detached":
            options["lifetime"] = "detached"
        built.append(ray.remote(verl_rollout.WorkerStandIn).options(**options).remote())
    pids = ray.get([worker.pid.remote() for worker in built])
    if plan.handles == "kept":
        return built
    ends = [os.pidfd_open(pid) for pid in pids]
    result = [ray.get_actor(name) for name in NAMES]
    del built
    if plan.handles == "weak":
        for end in ends:  # a pidfd is readable once the process has ended
            select.select([end], [], [])
    return result


if __name__ == "__main__":
    elsewhere.answer_plan(lambda plan: run(RolloutPlan(**plan)))
