"""Reproduce errors of unmodified Ray: a dead actor (RAY010), a wrong cluster address (RAY011), no cluster (RAY013)."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from typing import Any

from repro.drivers import single_call

_repro = partial(single_call.repro, needs=("ray",))


class _Engine:
    """An actor whose process ends without an error message."""

    def generate(self) -> None:
        os._exit(1)


@_repro(
    "RAY010",
    raises="ActorDiedError: actor died",
    simulated=("the engine: a small actor that ends by os._exit",),
)
def ray010_actor_ended(_mitigation: str | None) -> None:
    """Call an actor whose process ends: the caller gets ActorDiedError without the reason."""
    import ray

    os.environ.pop("RAY_ADDRESS", None)
    ray.init(num_cpus=1, include_dashboard=False)
    engine: Any = ray.remote(_Engine).remote()
    ray.get(engine.generate.remote())


@_repro("RAY011", raises="ValueError: Invalid Ray address")
def ray011_http(mitigation: str | None) -> None:
    """Start Ray while RAY_ADDRESS is the address of a dashboard."""
    import ray

    os.environ["RAY_ADDRESS"] = "http://127.0.0.1:8265"
    if mitigation == "cluster_address":
        del os.environ["RAY_ADDRESS"]
    ray.init(num_cpus=1, include_dashboard=False)


@_repro("RAY013", raises="ConnectionError: Could not find any running Ray instance")
def ray013_auto(_mitigation: str | None) -> None:
    """Join a cluster by ray.init(address="auto") while no cluster runs."""
    import ray

    os.environ.pop("RAY_ADDRESS", None)
    # Ray finds clusters on this machine by a file in its temporary folder, so another folder is used.
    os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="r", dir="/tmp")
    ray.init(address="auto")
