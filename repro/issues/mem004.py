"""MEM004: less of the device is free than the engine's share of it: vLLM's own check at its start."""

from __future__ import annotations

from types import SimpleNamespace

from repro.drivers import calls

GIB = 1 << 30


def _request(mitigation: str | None) -> None:
    from vllm.v1.worker.utils import request_memory

    device = SimpleNamespace(
        total_memory=80 * GIB, free_memory=(79 if mitigation == "stray" else 40) * GIB, device_="cuda:0"
    )
    share = 0.4 if mitigation == "smaller_share" else 0.9
    request_memory(device, SimpleNamespace(gpu_memory_utilization=share))


REPRO = calls.repro(
    "MEM004",
    "Less GPU memory is free than the engine's share",
    needs=("vllm",),
    modules=("vllm.v1.worker.utils",),
    trigger=("half_free", "vLLM's check of the device's memory: 40 of 80 GiB are free, the share is 0.9"),
    call=_request,
    failure=("ValueError", "raise ValueError(", "request_memory"),
    says="on startup is less than desired",
    helps={"stray": "79 GiB are free", "smaller_share": "gpu_memory_utilization=0.4"},
    simulated=("the device: its figures are told",),
)
