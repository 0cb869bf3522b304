"""vLLM's engine process: it builds verl's executor, and reports what became of that and what Ray shows from here."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from typing import Any

from repro.drivers import elsewhere
from repro.drivers.rollout import plan

VARIABLES = ("RAY_ADDRESS", "VLLM_WORKER_MULTIPROC_METHOD")


def main(report_to: Connection, address: str) -> None:
    """Runs in the new process.

    Args:
        report_to: is sent one dict.
        address: for a `ray.init()` before verl's own; "" for none.
    """
    report: dict[str, Any] = {"engine_environment": {name: os.environ.get(name) for name in VARIABLES}}
    try:
        _build(address)
    except BaseException as error:  # noqa: BLE001 - every end of the process is a result
        report["failure"] = elsewhere.told(error)
    try:
        report |= _seen()
    finally:
        report_to.send(report)
        report_to.close()


def _build(address: str) -> None:
    """Builds verl's executor, as EngineCore does with the class that the configuration names."""
    from verl.workers.rollout.vllm_rollout.vllm_async_server import ExternalRayDistributedExecutor
    from vllm.config import DeviceConfig, ParallelConfig, VllmConfig

    parallel = ParallelConfig(
        tensor_parallel_size=plan.WORKERS, distributed_executor_backend=ExternalRayDistributedExecutor
    )
    # By its name: no platform is detected on a machine without a GPU.
    config = VllmConfig(parallel_config=parallel, device_config=DeviceConfig(device="cpu"))
    config.instance_id = plan.INSTANCE
    if address:
        import ray

        ray.init(address=address, namespace=plan.NAMESPACE)
    ExternalRayDistributedExecutor(config)


def _seen() -> dict[str, Any]:
    """Says which cluster this process is in, and which actors it sees there."""
    import ray

    if not ray.is_initialized():
        return {}
    found = {
        "engine_address": ray.get_runtime_context().gcs_address,
        "names": sorted(ray.util.list_named_actors()),
        "everywhere": sorted(
            f"{actor['namespace']}/{actor['name']}"
            for actor in ray.util.list_named_actors(all_namespaces=True)
        ),
    }
    ray.shutdown()
    return found
