"""RAY011: ray.init() finds the address of the dashboard in RAY_ADDRESS."""

from __future__ import annotations

import os

from repro.drivers import calls


def _start(mitigation: str | None) -> None:
    import ray

    os.environ["RAY_ADDRESS"] = "http://127.0.0.1:8265"
    if mitigation == "cluster_address":
        del os.environ["RAY_ADDRESS"]
    ray.init(num_cpus=1, include_dashboard=False)


REPRO = calls.repro(
    "RAY011",
    "RAY_ADDRESS is the address of the dashboard",
    needs=("ray",),
    modules=("ray",),
    trigger=("http", "ray.init() under RAY_ADDRESS=http://127.0.0.1:8265"),
    call=_start,
    failure=("ValueError", "raise ValueError(", "_get_builder_from_address"),
    says="Invalid Ray address",
    helps={"cluster_address": "RAY_ADDRESS unset"},
)
