"""Measure the CPU time of each transport of weights, relative to memcpy of the same bytes.

`python benchmarks/sync.py [MIB [ROUNDS]]`: 512 MiB of random float32 tensors of a Llama's shapes, 15 rounds. Each round
copies the tensors in this process, and then sends them by each transport to another process, which copies them into its
own tensors. Each process is pinned to one core, and PyTorch uses one thread. The CPU time of all threads of both
processes is divided by that of memcpy in the same round, so that noise of the machine cancels.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from benchmarks.measure import interval  # noqa: E402
from grpo_core.rollout.weights.digest import fingerprint_of, spot_digest  # noqa: E402
from grpo_core.rollout.weights.sync import Sender, TensorFile  # noqa: E402
from grpo_core.rollout.wire import CHECKSUM, checksum  # noqa: E402

TRANSPORTS = ("shm", "http")
WARM = 2
CORES = os.sched_getaffinity(0)
Tensors = list[tuple[str, torch.Tensor]]


class Receiver:
    """The receiving process: the rollout server of grpo_core with a stand-in engine that copies weights."""

    def __init__(self) -> None:
        """Start the process on the last core; the sender runs on the first core."""
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        program = [sys.executable, "-m", "benchmarks.programs.receiver"]
        self.process = subprocess.Popen(
            program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        os.sched_setaffinity(self.process.pid, {max(CORES)})
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def read_timings(self) -> dict[str, Any]:
        """Return cpu_s (CPU seconds since the last call), digest (of the weights) and digest_s (its CPU seconds)."""
        return self.request("GET", "/timings")

    def request(self, method: str, path: str, body: Any = None, headers: Any = None) -> dict[str, Any]:
        """Send an HTTP request; return the JSON object of the response."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, body, headers or {})
            return dict(json.loads(connection.getresponse().read()))

    def load(self, name: str, version: int) -> int:
        """Make the server load a version from shared memory; return the version that it then reports."""
        body = json.dumps({"name": name, "version": version})
        answer = self.request("POST", "/sync/load", body, {"Content-Type": "application/json"})
        return int(answer["policy_version"])

    def upload(self, file: TensorFile, version: int) -> int:
        """Send a version in the body of a request; return the version that the server then reports."""
        body = file.to_bytes()
        headers = {CHECKSUM: checksum(body), "X-Policy-Version": str(version)}
        return int(self.request("POST", "/weights", body, headers)["policy_version"])


def random_llama_tensors(mib: int) -> Tensors:
    """Return about `mib` MiB of random float32 tensors of a Llama's shapes (at least two layers)."""
    torch.manual_seed(0)
    shapes = {"embed": (16384, 1024), "head": (16384, 1024), "norm": (1024,)}
    for layer in range(max(2, (mib - 128) // 49)):
        prefix = f"layers.{layer}"
        shapes |= {f"{prefix}.{name}": (1024, 1024) for name in ("q", "k", "v", "o")}
        shapes |= {
            f"{prefix}.gate": (2816, 1024),
            f"{prefix}.up": (2816, 1024),
            f"{prefix}.down": (1024, 2816),
        }
        shapes |= {f"{prefix}.norm1": (1024,), f"{prefix}.norm2": (1024,)}
    return [(name, torch.randn(shape)) for name, shape in shapes.items()]


def measure(tensors: Tensors, rounds: int) -> list[dict[str, float]]:
    """Return for each round the CPU seconds of memcpy, of each transport and of its digests.

    The digests of both sides are compared after each transfer, and are not in the time of the transport.

    Raises:
        RuntimeError: The receiver has other weights than were sent.
    """
    copies = [torch.zeros_like(value) for _, value in tensors]
    receiver = Receiver()
    senders = {kind: Sender(kind, receiver.load, receiver.upload) for kind in TRANSPORTS}
    measured = []
    for version in range(rounds + WARM):
        began = time.process_time()
        for copy, (_, value) in zip(copies, tensors, strict=True):
            copy.copy_(value)
        times = {"memcpy": time.process_time() - began}
        for kind, sender in senders.items():
            receiver.read_timings()
            began = time.process_time()
            sender.send(tensors, version)
            sent = time.process_time()
            timings, digest = receiver.read_timings(), spot_digest(tensors, version)
            if digest != timings["digest"]:
                raise RuntimeError(f"version {version}: {timings['digest']} arrived, {digest} was sent")
            times[kind] = sent - began + timings["cpu_s"]
            times[f"{kind} digests"] = time.process_time() - sent + timings["digest_s"]
        measured.append(times)
    receiver.process.communicate()
    return measured[WARM:]


def main(mib: int = 512, rounds: int = 15) -> None:
    """Print a line for each transport, then the speed of the SHA-256 fingerprint."""
    os.sched_setaffinity(0, {min(CORES)})
    torch.set_num_threads(1)
    tensors = random_llama_tensors(mib)
    measured = measure(tensors, rounds)
    size = sum(value.numel() * 4 for _, value in tensors) / 1e9
    memcpy = size / interval([times["memcpy"] for times in measured])[0]
    print(f"{size:.3f} GB of float32, {rounds} rounds; memcpy {memcpy:.2f} GB/s; CPU time, medians [95 %]")
    for kind in TRANSPORTS:
        ratio = interval([times[kind] / times["memcpy"] for times in measured])
        share = interval([times[f"{kind} digests"] / times[kind] for times in measured])[0]
        print(
            f"{kind:6} {ratio[0]:.1f} [{ratio[1]:.1f}, {ratio[2]:.1f}] times memcpy; digests {share:.1%} of that"
        )
    part = [("a", torch.randn(2**23))]
    began = time.process_time()
    fingerprint_of(part)
    speed = 32 * 2**20 / 1e9 / (time.process_time() - began)
    print(f"the exact fingerprint (SHA-256), one side: {speed:.2f} GB per s of CPU")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
