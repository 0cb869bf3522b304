"""What is to be done in one attempt, and what was seen: plain data that goes from process to process."""

from __future__ import annotations

from dataclasses import dataclass, field

NAMESPACE = "training"
ELSEWHERE = "another-job"
# verl draws six letters; these are fixed, so that runs can be compared.
PREFIX = "k3X9aB"
# One is enough to be missing, and each that is found imports vLLM for the configuration it is sent.
WORKERS = 1
# `{prefix}WorkerDict_{placement group}:{local rank}`, verl/single_controller/ray/base.py of 0.4.1 and 0.5.0.
NAMES = tuple(f"{PREFIX}WorkerDict_0:{rank}" for rank in range(WORKERS))
# `{namespace}:{prefix}:{data parallel size}:{data parallel rank}`, AsyncvLLMServer of 0.4.1 and 0.5.0.
INSTANCE = f"{NAMESPACE}:{PREFIX}:1:0"

# Placeholders in the server's environment, filled in when the addresses are known.
RIGHT, WRONG = "<right>", "<wrong>"


@dataclass(frozen=True)
class RolloutPlan:
    """How the job is started.

    Args:
        head: the cluster is started by `ray start --head` before the job, in the "default" folder or "elsewhere"; ""
            where the driver's own `ray.init()` starts it.
        workers_namespace: in which the workers are registered.
        handles: what the driver holds of its workers: "kept" the handles that made them, "weak" only handles that
            were looked up by name, "detached" the same of workers with lifetime="detached".
        server_env: what the server actor's environment is given.
        driver_address: RAY_ADDRESS of the running cluster is set in the driver's environment.
        other_cluster: a second cluster runs on the machine.
        init_first: the engine process calls `ray.init(address=...)` before verl's code does.
    """

    head: str = ""
    workers_namespace: str = NAMESPACE
    handles: str = "kept"
    server_env: dict[str, str] = field(default_factory=dict)
    driver_address: bool = False
    other_cluster: bool = False
    init_first: bool = False
