"""Fuzz a process of grpo_core's rollout server by its OpenAPI description with schemathesis, and print the results.

Usage: fuzz_server.py SERVER_PYTHON [REQUESTS]. Runs where schemathesis is installed; the server runs in SERVER_PYTHON,
    which has torch. Four kinds of requests are sent: requests that the description allows; the same with values that
    fit the model, so that the server samples; requests that the description forbids; and damaged uploads of the model's
    weights. The exit code is 1 for a status of 500 or above, a response that the description does not allow, or a
    server that ended, whose memory grew, or whose weights changed.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
import unittest
import warnings
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

ROOT = Path(__file__).resolve().parents[2]
MODEL = """
import sys
from pathlib import Path
from grpo_core.config import ModelConfig, TaskConfig
from grpo_core.tasks.model import make_tiny
make_tiny(Path(sys.argv[1]), ModelConfig(), TaskConfig().letters, seed=0)
"""
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
GROWTH_MIB = 64  # of the server's memory, after the first fifth of the requests
PARTS = 5
# Version of all uploads: it is part of the fingerprint, and an upload whose damage has no effect is accepted.
VERSION = "5"
MODEL_VALUES = {  # fields that fit_to_model keeps, and how it maps their integers
    **dict.fromkeys(("prompt_ids", "prompt", "prompts", "prefix", "stop_ids"), lambda token: token % 13),
    **dict.fromkeys(("requests", "params", "id", "seed", "temperature"), lambda value: value),
    "max_tokens": lambda value: 21 + value % 8,
    "budget": lambda value: value % 8,
    "n": lambda value: 1 + value % 3,
    "logprobs": lambda _: 0,
}


@dataclass
class ResponseCounts:
    """Counts of responses by operation and status, and descriptions of the faults found."""

    statuses: dict[str, Counter] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, where: str, status: int) -> None:
        self.statuses.setdefault(where, Counter())[status] += 1

    @property
    def count(self) -> int:
        return sum(counter.total() for counter in self.statuses.values())


class Server:
    """The server process under test; it ends when this process ends."""

    def __init__(self, python: str, folder: str) -> None:
        environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
        subprocess.run([python, "-c", MODEL, folder], env=environment, check=True, timeout=500)
        options = ["--model.path", folder, "--model.max_length", "64"]
        self.process = subprocess.Popen(
            [python, "-m", "grpo_core", "serve", "--exit-with-stdin", "--allow-unauthenticated", *options],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        where = json.loads(self.process.stdout.readline())
        self.url, self.weights = f"http://127.0.0.1:{where['port']}", Path(folder) / "model.safetensors"

    def memory_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def fingerprint(self) -> str:
        return requests.get(f"{self.url}/fingerprint", timeout=500).json()["fingerprint"]

    def load(self) -> None:
        """Upload the server's current weights with the version of all uploads."""
        body = self.weights.read_bytes()
        headers = {"X-Policy-Version": VERSION, "X-Content-CRC32": f"{zlib.crc32(body):08x}"}
        requests.post(f"{self.url}/weights", data=body, headers=headers, timeout=500).raise_for_status()

    def stop(self) -> int:
        self.process.stdin.close()
        return self.process.wait(timeout=500)


def fit_to_model(value, name=""):
    """Return an allowed request with token ids of the model's vocabulary, few tokens and no further options."""
    if isinstance(value, dict):
        return {key: fit_to_model(entry, key) for key, entry in value.items() if key in MODEL_VALUES}
    if isinstance(value, list):
        return [fit_to_model(entry, name) for entry in value[:20] if entry != []]
    if isinstance(value, float) and name != "temperature":  # JSON Schema calls 3.0 an integer
        value = int(value)
    return MODEL_VALUES[name](value) if isinstance(value, int) else value


def fuzz_operation(operation, kind, examples, session, counts) -> None:
    """Send requests of a kind to one operation: `allowed`, `fitted` (to the model) or `forbidden`."""
    mode = GenerationMode.NEGATIVE if kind == "forbidden" else GenerationMode.POSITIVE

    @seed(counts.count)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case):
        if kind == "folded" and isinstance(case.body, dict):
            case.body = fit_to_model(case.body)
        response = case.call(session=session, timeout=500)
        counts.add(operation.label, response.status_code)
        try:
            case.validate_response(response, checks=CHECKS)
        except BaseException as error:  # noqa: BLE001 - a group of failures, or one
            counts.faults.append(f"{operation.label} {kind}: {response.status_code}: {error}"[:2000])

    with contextlib.suppress(unittest.SkipTest):  # schemathesis skips operations without input
        send()


def fuzz_uploads(server, examples, session, counts) -> None:
    """Upload the model's own weights with a good checksum, but cut short or with a damaged header."""
    good = server.weights.read_bytes()
    header = 8 + int.from_bytes(good[:8], "little")

    @seed(counts.count)
    @settings(max_examples=examples, deadline=None, database=None, phases=[Phase.generate])
    @given(
        st.integers(0, len(good) - 1), st.lists(st.tuples(st.integers(0, header - 1), st.integers(0, 255)))
    )
    def send(length, flips):
        body = bytearray(good[:length] if not flips else good)
        for place, value in flips:
            body[place] = value
        headers = {"X-Policy-Version": VERSION, "X-Content-CRC32": f"{zlib.crc32(body):08x}"}
        response = session.post(f"{server.url}/weights", data=bytes(body), headers=headers, timeout=500)
        counts.add("POST /weights (nearly right)", response.status_code)
        if response.status_code >= 500:
            counts.faults.append(f"POST /weights, cut at {length}, {flips}: {response.text}"[:2000])

    send()


def fuzz(server, request_count) -> tuple[ResponseCounts, list[float]]:
    """Send all requests in five parts; return the counts, and the memory after each part.

    The first part already uses every operation, so memory must not grow after it.
    """
    counts, session, memory = ResponseCounts(), requests.Session(), []
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [operation.ok() for operation in schema.get_all_operations()]
    with_input = [entry for entry in operations if entry.definition.raw.get("requestBody")]
    kinds = ("allowed", "folded", "forbidden")
    examples = int(request_count / PARTS / (len(kinds) * len(with_input) + 1)) + 1
    for _ in range(PARTS):
        for operation in operations:
            has_input = operation in with_input
            for kind in kinds if has_input else kinds[:1]:
                fuzz_operation(operation, kind, examples if has_input else 2, session, counts)
        fuzz_uploads(server, examples, session, counts)
        memory.append(server.memory_mib())
    return counts, memory


def main() -> int:
    python, requests_wanted = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5000
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        server = Server(python, folder)
        server.load()
        before, start = server.fingerprint(), time.monotonic()
        counts, memory = fuzz(server, requests_wanted)
        seconds = time.monotonic() - start
        after, alive = server.fingerprint(), server.process.poll() is None
        code = server.stop()
    for where, counter in sorted(counts.statuses.items()):
        print(f"{where:45} {counter.total():6}  {dict(sorted(counter.items()))}")
    total = sum(counts.statuses.values(), Counter())
    growth = memory[-1] - memory[0]
    print(f"\n{counts.count} requests in {seconds:.0f} s: {dict(sorted(total.items()))}")
    print(f"5xx: {sum(n for status, n in total.items() if status >= 500)}; faults: {len(counts.faults)}")
    print("memory behind each fifth, MiB: " + ", ".join(f"{value:.0f}" for value in memory))
    print(f"alive: {alive}, exit code {code}; weights unchanged: {before == after}")
    for fault in counts.faults[:20]:
        print(f"\n{fault}")
    fine = not counts.faults and alive and code == 0 and before == after and growth < GROWTH_MIB
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
