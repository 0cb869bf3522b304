"""HNG010: a server has nothing to do, and owes an answer."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from importlib import import_module
from typing import Any
from urllib.request import urlopen

from repro.drivers import hangs, standing, whole_engine

TRAINER = ("the trainer",)
LIMIT_S = 2.0


def task_lost(mitigation: str) -> None:
    """An endpoint awaits what a background task would set; the task raised, and nobody was told."""
    fastapi, uvicorn = import_module("fastapi"), import_module("uvicorn")
    app, port = fastapi.FastAPI(), hangs.free_port()

    async def generate() -> dict[str, str]:
        finished = asyncio.Event()

        async def run() -> None:
            float("no number")
            finished.set()

        task = asyncio.create_task(run())
        await finished.wait()
        return {"task": str(task)}

    app.add_api_route("/generate", generate)
    if not os.fork():
        standing.say("guilty", "the server")
        uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical", loop="asyncio")
    _up(port, "/docs")
    standing.say("ready", *TRAINER)
    _ask(port, "/generate", LIMIT_S if mitigation == "ask_again" else None)
    standing.say("done", *TRAINER)


def engine_paused(mitigation: str) -> None:
    """A real `vllm serve` is paused for a weight update that does not come, and then asked for a completion."""
    port, folder = hangs.free_port(), whole_engine.save(whole_engine.model(0))
    engine = _served(folder, port)
    standing.say("guilty", "the engine's server", engine.pid)
    _ask(port, "/pause", None, {})
    standing.say("ready", *TRAINER)
    if mitigation == "resume":
        _ask(port, "/resume", None, {})
    asked = {"model": folder, "prompt": [5, 9, 17], "max_tokens": 4, "return_token_ids": True}
    _ask(port, "/v1/completions", LIMIT_S if mitigation == "ask_again" else None, asked)
    standing.say("done", *TRAINER)


def _served(folder: str, port: int) -> subprocess.Popen[bytes]:
    """By the module that `vllm serve` is: the CPU build has no such script."""
    environment = os.environ | whole_engine.environment() | {"VLLM_SERVER_DEV_MODE": "1"}
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING")
    words = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        f"--model={folder}",
        f"--port={port}",
    ]
    words += ["--host=127.0.0.1", "--dtype=float32", "--skip-tokenizer-init", "--enforce-eager"]
    words += [f"--max-model-len={whole_engine.LIMIT}", "--no-enable-chunked-prefill"]
    words += ["--max-num-batched-tokens=4096"]
    process = subprocess.Popen(words, env=environment)
    _up(port, "/health")
    return process


def _up(port: int, path: str) -> None:
    while True:
        with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}{path}"):
            return
        time.sleep(0.2)


def _ask(port: int, path: str, limit: float | None, document: dict[str, Any] | None = None) -> None:
    """Under a limit: an error in place of a hang, and the trainer can ask again."""
    body = None if document is None else json.dumps(document).encode()
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=limit)
    with contextlib.suppress(TimeoutError):
        asked.request("GET" if body is None else "POST", path, body, {"Content-Type": "application/json"})
        asked.getresponse().read()


TRIGGERS = {
    "task_lost": hangs.Standing(task_lost, TRAINER, ("fastapi", "uvicorn")),
    "engine_paused": hangs.Standing(
        engine_paused, TRAINER, ("vllm",), ("the trainer: a client of ours; the model is tiny",)
    ),
}
REPRO = hangs.repro(
    "HNG010",
    "A server has nothing to do, and owes an answer",
    triggers=TRIGGERS,
    counted="trainers went on",
    helps={"ask_again": "a limit of 2 s at the client", "resume": "POST /resume"},
    only={"resume": ("engine_paused",)},
    simulated=("trainer and server: a client and a route of ours, under FastAPI and uvicorn",),
)

if __name__ == "__main__":
    hangs.main(TRIGGERS)
