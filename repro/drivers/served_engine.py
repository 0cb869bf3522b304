"""A real `vllm serve` of the installed release with a tiny model, and a client of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from repro import processes
from repro.drivers import hangs, whole_engine

ASKED = {"prompt": [5, 9, 17], "max_tokens": 4, "return_token_ids": True}


def start(*options: str) -> tuple[subprocess.Popen[bytes], str, int]:
    """Start the module behind `vllm serve`, whose script the CPU build lacks; return process, model and port."""
    port, folder = hangs.free_port(), whole_engine.save(whole_engine.model(0))
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
    words += ["--max-num-batched-tokens=4096", *options]
    process = subprocess.Popen(words, env=environment)
    wait_for(port, "/health")
    return process, folder, port


def wait_for(port: int, path: str) -> None:
    """Until it answers there."""
    while True:
        with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}{path}"):
            return
        time.sleep(0.2)


def request_status(port: int, path: str, limit: float | None, document: dict[str, Any] | None = None) -> int:
    """The status of an answer; 0 where none came within the limit: an error instead of a hang."""
    body = None if document is None else json.dumps(document).encode()
    requests = http.client.HTTPConnection("127.0.0.1", port, timeout=limit)
    with contextlib.suppress(TimeoutError):
        requests.request("GET" if body is None else "POST", path, body, {"Content-Type": "application/json"})
        answer = requests.getresponse()
        answer.read()
        return answer.status
    return 0


def worker(server: int) -> int:
    """The process below a server in which the model is: vLLM names it itself."""
    by_name = {}
    for pid in [server, *processes.descendants(server)]:
        with contextlib.suppress(OSError):
            by_name[pid] = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    by_name = {pid: name for pid, name in by_name.items() if name.startswith("VLLM::")}
    # If the engine's core runs the model itself, there is no worker.
    return next((pid for pid, name in by_name.items() if name.startswith("VLLM::Worker")), max(by_name))
