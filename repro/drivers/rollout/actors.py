"""The actors of the job: workers that only count what they are asked, and the server that starts the engine process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from repro.drivers.rollout import engine


class WorkerStandIn:
    """Stands for a WorkerDict of verl: it answers `execute_method`, and loads no model."""

    def __init__(self) -> None:
        self._asked: list[str] = []

    def execute_method(self, method: str, *_: Any, **__: Any) -> None:
        """Notes what it was asked to do, as WorkerDict would do it."""
        self._asked.append(method)

    def asked(self) -> list[str]:
        """Returns what it was asked so far."""
        return self._asked

    def pid(self) -> int:
        """Returns its process."""
        return os.getpid()


class ServerStandIn:
    """Stands for AsyncvLLMServer: it starts the engine process the way vLLM does, and waits for its report."""

    def start_engine(self, address: str) -> dict[str, Any]:
        """Starts the engine process and returns its report.

        Args:
            address: for a `ray.init()` before verl's own; "" for none.
        """
        import ray
        from vllm.utils import get_mp_context

        before = _chosen(os.environ)
        # As CoreEngineProcManager in vllm/v1/utils.py of 0.8.5.post1; whether RAY_ADDRESS is handed on is decided here.
        context = get_mp_context()
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=engine.main, args=(there, address), name="EngineCore_0")
        process.start()
        there.close()
        try:
            report: dict[str, Any] = here.recv()
        except EOFError:
            process.join()
            report = {"broken": f"the engine process ended with exit code {process.exitcode}"}
        process.join()
        return report | {
            "server_environment": before,
            "server_address": ray.get_runtime_context().gcs_address,
            "server_namespace": ray.get_runtime_context().namespace,
        }


def _chosen(environment: Mapping[str, str]) -> dict[str, str | None]:
    return {name: environment.get(name) for name in engine.VARIABLES}
