"""Run our rollout server around a stand-in engine that only copies weights, for the weight sync benchmark.

The engine copies received weights into its own tensors, as the embedded engine does. `GET /timings` returns its times.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from grpo_core.rollout.engine import Capabilities
from grpo_core.rollout.weights.digest import spot_digest


class Engine:
    """A stand-in engine: it copies the weights that it receives, and measures the time of that."""

    name = "memory"
    capabilities = Capabilities(seeds=True, fingerprint=False, sleep=False)

    def __init__(self) -> None:
        self.policy_version, self.tensors = -1, {}
        self._load, self._clock, self._waited = (0.0, 0.0), time.process_time(), run_queue_wait_s()

    def update_weights(self, tensors: Any, version: int) -> None:
        """Copy the tensors, and time the copy."""
        began = read_clocks()
        for name, value in tensors:
            if name not in self.tensors:
                self.tensors[name] = torch.empty_like(value)
            self.tensors[name].copy_(value)
        self.policy_version, self._load = version, elapsed(began)

    def timings(self) -> dict[str, Any]:
        """Return (wall, CPU) seconds of the last load and the digest, and CPU and wait seconds since the last call."""
        used, waited_s, began = (
            time.process_time() - self._clock,
            run_queue_wait_s() - self._waited,
            read_clocks(),
        )
        digest = spot_digest(self.tensors.items(), self.policy_version)
        result = {"load": self._load, "digest": digest, "digesting": elapsed(began), "cpu_s": used}
        result["waited_s"] = waited_s
        self._clock, self._waited = time.process_time(), run_queue_wait_s()
        return result


def read_clocks() -> tuple[float, float]:
    """Return the wall clock and this process's CPU clock, in seconds."""
    return time.perf_counter(), time.process_time()


def elapsed(began: tuple[float, float]) -> tuple[float, float]:
    """Return the seconds of wall and CPU time since `began`, a result of `read_clocks`."""
    return time.perf_counter() - began[0], time.process_time() - began[1]


def run_queue_wait_s() -> float:
    """Return the seconds that the main thread waited for a core; 0 if the kernel doesn't report them."""
    try:
        return int(Path("/proc/self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def serve(engine: Engine) -> None:
    """Print the port, then answer requests until stdin ends."""
    import socket

    import uvicorn

    from grpo_core.rollout.server.access import Limits
    from grpo_core.rollout.server.app import create_app

    with ThreadPoolExecutor(1, initializer=lambda: torch.set_num_threads(1)) as thread:
        app = create_app(engine, thread, token=None, limits=Limits(weights_bytes=2**34))
        app.get("/timings")(engine.timings)
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", http="h11", lifespan="off"))
        threading.Thread(target=lambda: (sys.stdin.read(), setattr(server, "should_exit", True))).start()
        print(listener.getsockname()[1], flush=True)
        server.run(sockets=[listener])


if __name__ == "__main__":
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    serve(Engine())
