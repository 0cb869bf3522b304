"""What a process is in a job, by the title that it, Ray or vLLM gave it."""

from __future__ import annotations

import re

# What a process is, by its title, the first that fits. Ray and vLLM write their titles themselves.
_TITLES: tuple[tuple[str, str], ...] = (
    (r"^VLLM::EngineCor", "engine core"),
    (r"^VLLM::Worker|^VllmWorker", "engine worker"),
    (r"^VLLM::|^sglang::", "engine"),
    (r"^ray::IDLE", "idle Ray worker"),
    (r"^ray::(DashboardAgent|RuntimeEnvAgent)", "Ray's helper"),
    (r"^ray::", "Ray actor"),
    (r"(^|/)raylet\b", "raylet"),
    (r"(^|/)gcs_server\b", "Ray's head service"),
    (r"ray/(dashboard|_private|autoscaler)/", "Ray's helper"),
    (r"multiprocessing\.(resource_tracker|forkserver)|multiprocessing-fork.*tracker", "helper"),
    (r"torch/_inductor/compile_worker|wandb-core|wandb-service|tensorboard", "helper"),
    (r"torchrun|torch\.distributed\.(run|launch)|accelerate[ .](launch|commands\.launch)|bin/deepspeed\b", "launcher"),
    (r"vllm serve|vllm\.entrypoints|vllm-serve|vllm_serve|sglang\.launch_server|\buvicorn\b", "server"),
)  # fmt: skip
# Who serves a job and is no part of it: that it rests, or waits for work, says nothing.
SERVING = ("helper", "raylet", "Ray's head service", "Ray's helper", "idle Ray worker")
_WORKER = re.compile(r"^VLLM::Worker(?:_\w*?TP(\d+))?|TP(\d+)")


def by_title(title: str) -> tuple[str, int | None]:
    """(what it is, its rank among its like); `process` where the title does not tell.

    >>> by_title("VLLM::Worker_TP1"), by_title("ray::Trainer.step"), by_title("python train.py")
    (('engine worker', 1), ('Ray actor', None), ('process', None))
    """
    name = next((name for pattern, name in _TITLES if re.search(pattern, title)), "process")
    match = _WORKER.match(title) if name == "engine worker" else None
    number = next((part for part in match.groups() if part), None) if match else None
    return name, int(number) if number else None
