"""Repros of failing Ray calls."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from typing import Any

from repro.drivers import calls

_repro = partial(calls.repro, needs=("ray",), modules=("ray",))


class _Engine:
    """An actor whose process ends without a word."""

    def generate(self) -> None:
        os._exit(1)


@_repro(
    "RAY010",
    trigger="actor_ended",
    failure=("ActorDiedError", "raise value", "get_objects"),
    untried={"find_the_root": calls.SEARCHES},
    simulated=("the engine: an actor of ours that leaves by os._exit",),
)
def ray010_actor_ended(_mitigation: str | None) -> None:
    """A caller gets the error that an actor has died; only the worker's own log has the reason."""
    import ray

    os.environ.pop("RAY_ADDRESS", None)
    ray.init(num_cpus=1, include_dashboard=False)
    engine: Any = ray.remote(_Engine).remote()
    ray.get(engine.generate.remote())


@_repro(
    "RAY011",
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


@_repro(
    "RAY013",
    trigger="auto",
    failure=("ConnectionError", "raise ConnectionError(", "get_ray_address_from_environment"),
    says="Could not find any running Ray instance",
    untried={"explicit_address": "there is no cluster here whose address could be given"},
)
def ray013_auto(_mitigation: str | None) -> None:
    """Ray.init(address="auto") where no cluster was started."""
    import ray

    os.environ.pop("RAY_ADDRESS", None)
    # Ray finds other clusters on this machine by a file in this folder, so use another folder.
    os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="r", dir="/tmp")
    ray.init(address="auto")
