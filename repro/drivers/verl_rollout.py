"""Define the processes of RAY001: in the engine process, verl's unmodified executor looks up simulated Ray workers.

A run has four kinds of process: the driver (`verl_job`), Ray's own, the actors (workers and server), and the engine
process. Their plans and reports are plain data.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from repro.processes import SAFE_PATH
from repro.registry import UpstreamFailureError

NAMESPACE = "training"
OTHER_NAMESPACE = "another-job"
# verl draws six characters at random; these are fixed, so that runs can be compared.
PREFIX = "k3X9aB"
# One missing worker is enough to reproduce the failure.
WORKERS = 1
# `{prefix}WorkerDict_{placement group}:{local rank}`, verl/single_controller/ray/base.py of 0.4.1 and 0.5.0.
NAMES = tuple(f"{PREFIX}WorkerDict_0:{rank}" for rank in range(WORKERS))
# `{namespace}:{prefix}:{data parallel size}:{data parallel rank}`, AsyncvLLMServer of 0.4.1 and 0.5.0.
INSTANCE = f"{NAMESPACE}:{PREFIX}:1:0"

# Placeholders in the server's environment, filled in when the addresses are known.
RIGHT, WRONG = "<right>", "<wrong>"


@dataclass(frozen=True)
class RolloutPlan:
    """Settings of one attempt: the Ray clusters, workers and server of a verl job.

    Attributes:
        head: Temporary folder of a cluster that `ray start --head` starts before the job: "default" for Ray's own,
            "elsewhere" for another; "" if the driver's `ray.init()` starts the cluster.
        workers_namespace: Namespace in which the workers are registered.
        handles: The driver's handles of its workers: "kept" for the original handles, "weak" for handles looked up by
            name, "detached" for the latter with workers that have lifetime="detached".
        server_env: Variables added to the server actor's environment.
        driver_address: Whether the driver's environment has the RAY_ADDRESS of the running cluster.
        other_cluster: Whether a second cluster runs on the machine.
        init_first: Whether the engine process calls `ray.init(address=...)` before verl's code does.
    """

    head: str = ""
    workers_namespace: str = NAMESPACE
    handles: str = "kept"
    server_env: dict[str, str] = field(default_factory=dict)
    driver_address: bool = False
    other_cluster: bool = False
    init_first: bool = False


VARIABLES = ("RAY_ADDRESS", "VLLM_WORKER_MULTIPROC_METHOD")


def run_engine(report_to: Connection, address: str) -> None:
    """Run the engine process: build verl's executor, and send its failure, if any, and the actors that Ray lists here.

    Args:
        report_to: Connection that gets the report, one dict.
        address: Address for a `ray.init()` before verl's own; "" for none.
    """
    report: dict[str, Any] = {"engine_environment": {name: os.environ.get(name) for name in VARIABLES}}
    try:
        _build_executor(address)
    except BaseException as error:  # noqa: BLE001 - every end of the process is a result
        failure = UpstreamFailureError.from_exception(error)
        report["failure"] = {"kind": failure.kind, "text": failure.text, "frames": failure.frames}
    try:
        report |= _visible_actors()
    finally:
        report_to.send(report)
        report_to.close()


def _build_executor(address: str) -> None:
    """Build verl's executor, as vLLM's EngineCore does with the class in its configuration."""
    from verl.workers.rollout.vllm_rollout.vllm_async_server import ExternalRayDistributedExecutor
    from vllm.config import DeviceConfig, ParallelConfig, VllmConfig

    parallel = ParallelConfig(
        tensor_parallel_size=WORKERS, distributed_executor_backend=ExternalRayDistributedExecutor
    )
    # The device is named, because no platform is detected on a machine without a GPU.
    config = VllmConfig(parallel_config=parallel, device_config=DeviceConfig(device="cpu"))
    config.instance_id = INSTANCE
    if address:
        import ray

        ray.init(address=address, namespace=NAMESPACE)
    ExternalRayDistributedExecutor(config)


def _visible_actors() -> dict[str, Any]:
    """Return the address of this process's cluster and the names of its actors; empty if it joined no cluster."""
    import ray

    if not ray.is_initialized():
        return {}
    result = {
        "engine_address": ray.get_runtime_context().gcs_address,
        "names": sorted(ray.util.list_named_actors()),
        "everywhere": sorted(
            f"{actor['namespace']}/{actor['name']}"
            for actor in ray.util.list_named_actors(all_namespaces=True)
        ),
    }
    ray.shutdown()
    return result


class WorkerStandIn:
    """Simulated WorkerDict of verl, which records calls of `execute_method` and loads no model."""

    def __init__(self) -> None:
        self._methods: list[str] = []

    def execute_method(self, method: str, *_: Any, **__: Any) -> None:
        """Record the requested method, which WorkerDict would execute."""
        self._methods.append(method)

    def requested_methods(self) -> list[str]:
        """Return the methods requested so far."""
        return self._methods

    def pid(self) -> int:
        """Return the process id of the worker."""
        return os.getpid()


class ServerStandIn:
    """Simulated AsyncvLLMServer, which starts the engine process as vLLM does, and waits for its report."""

    def start_engine(self, address: str) -> dict[str, Any]:
        """Start the engine process and return its report.

        Args:
            address: Address for a `ray.init()` before verl's own; "" for none.
        """
        import ray
        from vllm.utils import get_mp_context

        # As CoreEngineProcManager in vllm/v1/utils.py of 0.8.5.post1: the start method, fork or spawn, decides whether
        # the engine process inherits RAY_ADDRESS.
        context = get_mp_context()
        near_end, far_end = context.Pipe(duplex=False)
        process = context.Process(target=run_engine, args=(far_end, address), name="EngineCore_0")
        process.start()
        far_end.close()
        try:
            report: dict[str, Any] = near_end.recv()
        except EOFError:
            process.join()
            report = {"broken": f"the engine process ended with exit code {process.exitcode}"}
        process.join()
        return report | {"server_address": ray.get_runtime_context().gcs_address}


_RAY = "import sys; from ray.scripts.scripts import main; sys.argv[0] = 'ray'; sys.exit(main())"
_HEAD_IS_UP = "will now block forever"


@contextlib.contextmanager
def start_head(folder: str | None = None) -> Iterator[str]:
    """Run a Ray cluster by `ray start --head`, yield its address, and end the cluster.

    Args:
        folder: Folder for `--temp-dir`; None for Ray's default, which TMPDIR decides.

    Raises:
        RuntimeError: The cluster did not start.
    """
    options = ["--head", "--port=0", "--num-cpus=1", "--include-dashboard=false", "--disable-usage-stats"]
    options += ["--block", f"--object-store-memory={100 * 2**20}"]
    options += [f"--temp-dir={folder}"] if folder else []
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment["PYTHONUNBUFFERED"] = "1"  # the loop below waits for a line
    with subprocess.Popen(
        [sys.executable, *SAFE_PATH, "-c", _RAY, "start", *options],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        message = []
        for line in process.stdout:
            message.append(line)
            if _HEAD_IS_UP in line:
                break
        else:
            raise RuntimeError(f"`ray start` ended: {''.join(message)[-2000:]}")
        try:
            # Ray writes this file before that line; a bare ray.init() reads it in the default folder.
            yield (Path(folder or f"{tempfile.gettempdir()}/ray") / "ray_current_cluster").read_text().strip()
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()
