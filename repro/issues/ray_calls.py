"""Calls of Ray that fail."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from repro.drivers import calls


class _Engine:
    """An actor whose process ends without a word."""

    def generate(self) -> None:
        os._exit(1)


@calls.repro(
    "RAY010",
    needs=("ray",),
    modules=("ray",),
    trigger="actor_ended",
    failure=("ActorDiedError", "raise value", "get_objects"),
    untried={"find_the_root": calls.SEARCHES},
    simulated=("the engine: an actor of ours that leaves by os._exit",),
)
def ray010_actor_ended(_mitigation: str | None) -> None:
    """A caller is told that an actor has died; why, only the worker's own log knows."""
    import ray

    os.environ.pop("RAY_ADDRESS", None)
    ray.init(num_cpus=1, include_dashboard=False)
    engine: Any = ray.remote(_Engine).remote()
    ray.get(engine.generate.remote())


@calls.repro(
    "RAY011",
    needs=("ray",),
    modules=("ray",),
    trigger="http",
    failure=("ValueError", "raise ValueError(", "_get_builder_from_address"),
    says="Invalid Ray address",
    changes={"cluster_address": "RAY_ADDRESS unset"},
)
def ray011_http(mitigation: str | None) -> None:
    """Ray.init() finds the address of the dashboard in RAY_ADDRESS."""
    import ray

    os.environ["RAY_ADDRESS"] = "http://127.0.0.1:8265"
    if mitigation == "cluster_address":
        del os.environ["RAY_ADDRESS"]
    ray.init(num_cpus=1, include_dashboard=False)


@calls.repro(
    "RAY013",
    needs=("ray",),
    modules=("ray",),
    trigger="auto",
    failure=("ConnectionError", "raise ConnectionError(", "get_ray_address_from_environment"),
    says="Could not find any running Ray instance",
    untried={"explicit_address": "there is no cluster here whose address could be given"},
)
def ray013_auto(_mitigation: str | None) -> None:
    """Ray.init(address="auto") where no cluster was started."""
    import ray

    os.environ.pop("RAY_ADDRESS", None)
    # A cluster of somebody else's on this machine is not to be found: it is told by a file in this folder.
    os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="r", dir="/tmp")
    ray.init(address="auto")
