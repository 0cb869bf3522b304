"""Run the rollout server of grpo_core with a stand-in engine that only copies weights, for the weight sync benchmark.

It listens on a free port of 127.0.0.1, which it prints. `GET /timings` returns the CPU time of this process (all its
threads) since the last call, the digest of the weights, and the CPU time of the digest. The process uses one
PyTorch thread, and ends when its standard input is closed. The benchmark pins it to a core.
"""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from grpo_core.rollout.engine import Capabilities
from grpo_core.rollout.weights.digest import spot_digest


class CopyingEngine:
    """A stand-in engine, which copies the weights that it receives into its own tensors."""

    name = "memory"
    capabilities = Capabilities(seeds=True, fingerprint=False, sleep=False)

    def __init__(self) -> None:
        self.policy_version, self.tensors, self._clock = -1, {}, time.process_time()

    def update_weights(self, tensors: Any, version: int) -> None:
        """Copy the tensors, and set the policy version."""
        for name, value in tensors:
            if name not in self.tensors:
                self.tensors[name] = torch.empty_like(value)
            self.tensors[name].copy_(value)
        self.policy_version = version

    def timings(self) -> dict[str, Any]:
        """Return cpu_s (CPU seconds since the last call), digest (of the weights) and digest_s (its CPU seconds)."""
        began = time.process_time()
        digest = spot_digest(self.tensors.items(), self.policy_version)
        used, self._clock = began - self._clock, time.process_time()
        return {"cpu_s": used, "digest": digest, "digest_s": self._clock - began}


def serve(engine: CopyingEngine) -> None:
    """Print the port, then serve requests until standard input is closed."""
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
    torch.set_num_threads(1)
    serve(CopyingEngine())
