"""RAY010: a caller is told that an actor has died; why, only the worker's own log knows."""

from __future__ import annotations

import os
from typing import Any

from repro.drivers import calls


class _Engine:
    """An actor whose process ends without a word."""

    def generate(self) -> None:
        os._exit(1)


def _call(mitigation: str | None) -> None:
    del mitigation
    import ray

    os.environ.pop("RAY_ADDRESS", None)
    ray.init(num_cpus=1, include_dashboard=False)
    engine: Any = ray.remote(_Engine).remote()
    ray.get(engine.generate.remote())


REPRO = calls.repro(
    "RAY010",
    "A Ray task or actor failed: only the wrapper",
    needs=("ray",),
    modules=("ray",),
    trigger=("actor_ended", "ray.get of a call within which the actor's process ends"),
    call=_call,
    failure=("ActorDiedError", "raise value", "get_objects"),
    untried={"find_the_root": calls.SEARCHES},
    simulated=("the engine: an actor of ours that leaves by os._exit",),
)
