"""Start rollout servers of vLLM, TRL or grpo_core, and measure sampling and weight updates of an engine.

`serving` runs a command until its server is ready. The commands for vLLM and TRL run in the Python of a cell, in
float32, so that log-probs can be compared to the trainer's.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from grpo_core.learn.logprobs import completion_logprobs
from grpo_core.rollout.engine import Engine
from grpo_core.rollout.http_client import PROTOCOL
from grpo_core.tasks.model import load_model
from grpo_core.types import Completion, Request, SamplingParams
from tests.grpo_core.conftest import perturb

ROOT = Path(__file__).resolve().parent.parent
MAX_MODEL_LEN = 320
PARAMS = SamplingParams(max_tokens=12, temperature=0.8, stop_ids=(11,))
# The prompts are longer than the CPU build's cache blocks of 128 tokens. Only whole blocks are cached between requests,
# so a missing cache reset would not be detected with shorter prompts.
PROMPTS = [tuple((7 * place + start) % 10 for place in range(150)) for start in range(4)]
REQUESTS = [Request(f"r{i}", PROMPTS[i // 3], seed=100 + i) for i in range(12)]

VLLM_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # enables the endpoints for training
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
VLLM_ARGUMENTS = [
    "--dtype=float32",
    "--enforce-eager",
    f"--max-model-len={MAX_MODEL_LEN}",
    "--logprobs-mode=processed_logprobs",  # of the distribution that is sampled from
    "--generation-config=vllm",  # not the model's generation_config.json
    # On a CPU, a seeded request whose prefill is split over steps ends the engine.
    "--no-enable-chunked-prefill",
    "--max-num-batched-tokens=4096",
]


# Ready messages of uvicorn and of our own server.
_READY = ("Application startup complete", PROTOCOL)


class NotStartedError(AssertionError):
    """Raised if a server ended or was not ready in time; the message has the end of its output."""


def vllm_command(python: Path, model_dir: Path, port: int, *more: str) -> list[str]:
    """Return the `vllm serve` command as `python -m ...`, because the CPU build installs no `vllm` script."""
    module = ["-m", "vllm.entrypoints.openai.api_server"]
    where = [f"--model={model_dir}", "--host=127.0.0.1", f"--port={port}"]
    return [str(python), *module, *where, *VLLM_ARGUMENTS, *more]


def trl_command(python: Path, model_dir: Path, port: int, *more: str) -> list[str]:
    """Return the `trl vllm-serve` command as `python -m ...`."""
    where = [f"--model={model_dir}", "--host=127.0.0.1", f"--port={port}", f"--max_model_len={MAX_MODEL_LEN}"]
    return [str(python), "-m", "trl.scripts.vllm_serve", *where, "--dtype=float32", *more]


def write_vllm_metadata(stage: Path, version: str) -> Path:
    """Write metadata of a distribution named `vllm` into a folder; return the folder.

    vLLM and TRL read its version, but the CPU build is named `vllm-cpu`.
    """
    folder = stage / f"vllm-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return stage


@contextlib.contextmanager
def serving(
    command: Sequence[str],
    log: Path,
    *,
    path: Sequence[Path] = (ROOT,),
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 300,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server and wait until it reports that it is ready; end its process group afterwards.

    Args:
        command: Command line of the server, with its port.
        log: File for its output.
        path: Folders of its PYTHONPATH.
        variables: Additional environment variables.
        timeout_s: Time limit of the start.

    Raises:
        NotStartedError: The server ended or was not ready in time.
    """
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("VLLM_", "PYTHON"))}
    environment = {
        **environ,
        **VLLM_ENVIRONMENT,
        **(variables or {}),
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    with log.open("w") as output:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, command, log, timeout_s)
        yield process
    finally:
        _stop(process)


def _wait_until_ready(
    process: subprocess.Popen[bytes], command: Sequence[str], log: Path, timeout_s: float
) -> None:
    """Wait for the ready message, then for the port: a server may report that it is ready shortly before it listens."""
    port = next(int(word.rpartition("=")[2]) for word in command if "port=" in word)
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline:
        if any(message in log.read_text(errors="replace") for message in _READY):
            with contextlib.suppress(ConnectionRefusedError):
                return socket.create_connection(("127.0.0.1", port), timeout=500).close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.1)
    output = log.read_text(errors="replace")[-3000:]
    raise NotStartedError(f"not up after {timeout_s:g} s, exit code {process.poll()}: {log}: {output}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate the server, then kill its process group."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=500)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=500)


def largest_difference(model, requests: Sequence[Request], completions: Sequence[Completion]) -> float:
    """Return the largest |trainer log-prob - engine log-prob| over all sampled tokens."""
    largest = 0.0
    for request, completion in zip(requests, completions, strict=True):
        with torch.no_grad():
            expected = completion_logprobs(
                model,
                torch.tensor([[*request.prompt_ids, *completion.ids]]),
                torch.tensor([len(request.prompt_ids)]),
                torch.tensor([len(completion.ids)]),
                temperature=PARAMS.temperature,
                chunk=64,
            )[0][0]
        largest = max(largest, float((expected - torch.tensor(completion.logprobs)).abs().max()))
    return largest


def measure_engine(engine: Engine, model_dir: Path, updates: int = 5) -> dict:
    """Measure an engine's samples, log-probs, seeds, and the log-prob difference after each weight update.

    Returns:
        completions, reasons, different: Number of completions, their finish reasons, number of distinct ones.
        repeatable: Whether the reversed requests give the same ids.
        difference: Largest log-prob difference between trainer and engine.
        updates: For each change of the trainer's weights the versions after the engine's update, and the difference
            before (`moved`) and after this update; empty if the engine takes no updates.
    """
    model = load_model(model_dir)
    first = engine.generate(REQUESTS, PARAMS)
    again = engine.generate(REQUESTS[::-1], PARAMS)[::-1]
    checks = {
        "completions": len(first),
        "reasons": sorted({completion.finish_reason for completion in first}),
        "different": len({completion.ids for completion in first}),
        "repeatable": [c.ids for c in again] == [c.ids for c in first],
        "difference": largest_difference(model, REQUESTS, first),
        "updates": [],
    }
    for version in range(updates) if engine.capabilities.update else ():
        before = engine.generate(REQUESTS, PARAMS)
        perturb(model.parameters(), seed=version)
        moved = largest_difference(model, REQUESTS, before)
        engine.update_weights(model.named_parameters(), version)
        completions = engine.generate(REQUESTS, PARAMS)
        versions = sorted({version for completion in completions for version in completion.versions})
        difference = largest_difference(model, REQUESTS, completions)
        checks["updates"].append({"version": versions, "moved": moved, "difference": difference})
    return checks
