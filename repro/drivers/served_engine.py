"""Start an unmodified `vllm serve` with a tiny model in a separate process; send requests to servers on this machine.

`start` starts the server; `request_completion` and `request_status` send a request. `find_worker` finds the process
that runs the model, from /proc.
"""

import contextlib
import http.client
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from repro import processes
from repro.drivers import hangs, whole_engine

REQUEST = {"prompt": [5, 9, 17], "max_tokens": 4, "return_token_ids": True}
CLIENT_SIMULATED = "the trainer: an HTTP client; the model is tiny"


def start(*options: str) -> tuple[subprocess.Popen[bytes], str, int]:
    """Start the module behind `vllm serve` and wait until it answers; return process, model folder and port.

    The module is started directly, because vLLM's CPU build has no script `vllm`.

    Args:
        options: Further command-line options of the server.
    """
    port, folder = hangs.free_port(), whole_engine.save(whole_engine.model(0))
    environment = os.environ | whole_engine.environment() | {"VLLM_SERVER_DEV_MODE": "1"}
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING")
    module = ["-m", "vllm.entrypoints.openai.api_server", f"--model={folder}", f"--port={port}"]
    flags = [_flag(name, value) for name, value in whole_engine.OPTIONS.items()]
    process = processes.start_python([*module, "--host=127.0.0.1", *flags, *options], env=environment)
    wait_for_server(port, "/health")
    return process, folder, port


def _flag(name: str, value: object) -> str:
    """Return an option of `vllm.LLM` as an option of the command line."""
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{dashed}" if value else f"--no-{dashed}"
    return f"--{dashed}={value}"


def wait_for_server(port: int, path: str) -> None:
    """Wait without a time limit until the server on a port answers a GET request with success."""
    while True:
        with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}{path}"):
            return
        time.sleep(0.2)


def request_status(
    port: int, path: str, limit: float | None = None, document: dict[str, Any] | None = None
) -> int:
    """Send a request (POST with a document); return the status, or 0 if the server is silent for `limit` seconds."""
    body = None if document is None else json.dumps(document).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=limit)
    with contextlib.suppress(TimeoutError):
        connection.request("POST" if body else "GET", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    return 0


def request_completion(port: int, folder: str, limit: float | None = None) -> None:
    """Request a completion of four tokens, and wait for the answer, at most `limit` seconds."""
    request_status(port, "/v1/completions", limit, {"model": folder} | REQUEST)


def find_worker(server: int) -> int:
    """Return the id of a server's worker, or of its engine core if that runs the model, by vLLM's process names."""
    names = {}
    for pid in [server, *processes.descendants(server)]:
        with contextlib.suppress(OSError):
            names[pid] = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    engine = {pid: name for pid, name in names.items() if name.startswith("VLLM::")}
    # If the engine's core runs the model itself, there is no worker.
    return next((pid for pid, name in engine.items() if name.startswith("VLLM::Worker")), max(engine))
