"""RAY013: ray.init(address="auto") where no cluster was started."""

from __future__ import annotations

import os
import tempfile

from repro.drivers import calls


def _start(mitigation: str | None) -> None:
    del mitigation
    import ray

    os.environ.pop("RAY_ADDRESS", None)
    # A cluster of somebody else's on this machine is not to be found: it is told by a file in this folder.
    os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="r", dir="/tmp")
    ray.init(address="auto")


REPRO = calls.repro(
    "RAY013",
    "No running Ray cluster was found",
    needs=("ray",),
    modules=("ray",),
    trigger=("auto", 'ray.init(address="auto") without a cluster'),
    call=_start,
    failure=("ConnectionError", "raise ConnectionError(", "get_ray_address_from_environment"),
    says="Could not find any running Ray instance",
    untried={"explicit_address": "there is no cluster here whose address could be given"},
)
