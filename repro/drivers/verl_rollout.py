"""Define the processes of the repro RAY001, in which verl's unmodified executor looks up simulated Ray workers.

The executor runs in the engine process, which without a mitigation does not see the workers. A run has four kinds of
process: the driver (`run_job`), Ray's own, the actors (workers and server), and the engine process. Their plans and
reports are plain data. The driver's report has the observations of the engine process, and the calls that each worker
received.
"""

import contextlib
import os
import select
import subprocess
import tempfile
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from repro import processes
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
        handles: The driver's handles of its workers: "kept" for the original handles; "weak" for handles looked up by
            name; "detached" for handles looked up by name, of workers with lifetime="detached".
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


def start_head(folder: str | None = None) -> str:
    """Start a Ray cluster by `ray start --head`, and return its address; the runner ends it after the attempt.

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
    process = processes.start_python(
        ["-c", _RAY, "start", *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    message = ""
    while _HEAD_IS_UP not in message:
        line = process.stdout.readline() if process.stdout else ""
        message += line
        if not line:
            raise RuntimeError(f"`ray start` ended: {message[-2000:]}")
    # Ray writes this file before that line; a bare ray.init() reads it in the default folder.
    return (Path(folder or f"{tempfile.gettempdir()}/ray") / "ray_current_cluster").read_text().strip()


def run_job(plan: RolloutPlan) -> dict[str, Any]:
    """Start the clusters of a plan, and the workers and the server in one of them; return the report."""
    import ray

    addresses = {}
    if plan.other_cluster:
        addresses[WRONG] = start_head(tempfile.mkdtemp(prefix="o-"))
    options: dict[str, Any] = {
        "num_cpus": 1,
        "include_dashboard": False,
        "object_store_memory": 100 * 2**20,
    }
    if plan.head:
        address = start_head(tempfile.mkdtemp(prefix="e-") if plan.head == "elsewhere" else None)
        options = {"address": address}
        if plan.driver_address:
            os.environ["RAY_ADDRESS"], options = address, {}
    ray.init(namespace=NAMESPACE, log_to_driver=True, **options)
    addresses[RIGHT] = ray.get_runtime_context().gcs_address
    if plan.driver_address:
        os.environ["RAY_ADDRESS"] = addresses[RIGHT]
    return _start_engine(plan, addresses)


def _start_engine(plan: RolloutPlan, addresses: dict[str, str]) -> dict[str, Any]:
    """Start workers and server, and let the server start the engine process; return the report."""
    import ray

    workers = _start_workers(plan)
    environment = {name: addresses.get(value, value) for name, value in plan.server_env.items()}
    server = ray.remote(ServerStandIn).options(num_cpus=0, runtime_env={"env_vars": environment}).remote()
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
        created.append(ray.remote(WorkerStandIn).options(**options).remote())
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
