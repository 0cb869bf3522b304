"""The other side of the weight sync benchmark: `receiver.py pipe ROOT`, called by frames, or `receiver.py http ROOT`.

What stands for an engine copies what it is given into tensors of its own, as the embedded engine does.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from grpo_core.engines.frames import read_frame, write_frame
from grpo_core.sync import Receiver
from grpo_core.sync.digest import spot_digest


class Engine:
    """Holds weights."""

    def __init__(self) -> None:
        self.policy_version, self.tensors, self.load_s = -1, {}, 0.0

    def update_weights(self, tensors: Any, version: int) -> None:
        """Copies them."""
        began = time.perf_counter()
        for name, value in tensors:
            if name not in self.tensors:
                self.tensors[name] = torch.empty_like(value)
            self.tensors[name].copy_(value)
        self.policy_version, self.load_s = version, time.perf_counter() - began

    def facts(self) -> dict[str, Any]:
        """How long the last load took, the digest of what is held, and how long that took."""
        began = time.perf_counter()
        digest = spot_digest(self.tensors.items(), self.policy_version)
        return {"load_s": self.load_s, "digest": digest, "digest_s": time.perf_counter() - began}


def pipe(engine: Engine, receiver: Receiver) -> None:
    """Answers frames."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (message := read_frame(sys.stdin.buffer)) is not None:
        (document, payload), result = message, {}
        method, arguments = document["method"], document["arguments"]
        if method == "sync_load":
            result = receiver.load(arguments, engine, payload)
        elif method == "facts":
            result = engine.facts()
        else:
            result = getattr(receiver, method.removeprefix("sync_"))(arguments)
        write_frame(answers, {"result": result})


def http(engine: Engine) -> None:
    """Answers requests, until stdin ends; the port is the first line it prints."""
    import socket

    import uvicorn
    from fastapi import FastAPI, Request

    from grpo_core.sync.uploads import Staging, protocol, uploaded

    app, staging = FastAPI(), Staging()

    with ThreadPoolExecutor(1, initializer=lambda: torch.set_num_threads(1)) as thread:

        async def weights(request: Request) -> dict[str, int]:
            version = int(request.headers["x-policy-version"])
            async with uploaded(request, staging, timeout_s=60) as tensors:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(thread, engine.update_weights, tensors.items(), version)
            return {"policy_version": version}

        weights.__annotations__["request"] = Request
        app.post("/weights")(weights)
        app.get("/facts")(engine.facts)
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="error", http=protocol(), lifespan="off")
        server = uvicorn.Server(config)
        threading.Thread(target=lambda: (sys.stdin.read(), setattr(server, "should_exit", True))).start()
        print(listener.getsockname()[1], flush=True)
        server.run(sockets=[listener])


if __name__ == "__main__":
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    if sys.argv[1] == "pipe":
        pipe(Engine(), Receiver(timeout_s=60, root=Path(sys.argv[2])))
    else:
        http(Engine())
