"""Measure the bandwidth of each transport of weights, relative to memcpy of the same bytes.

`python benchmarks/sync.py [MIB [ROUNDS]]`: 512 MiB of random float32 tensors of a Llama's shapes, 15 rounds. Each round
copies the tensors in this process, and then sends them by each transport to another process, which copies them into its
own tensors. Each process has one thread, pinned to a core. A ratio compares times of the same round, so that noise of
the machine cancels. Wall times are valid only with two free cores: the time that the processes waited for a core is
printed, and if it is more than a tenth of the wall time, the result is "not measured". CPU times (of both processes
together) are valid on any machine.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from benchmarks.measure import interval  # noqa: E402
from benchmarks.programs.receiver import elapsed, read_clocks, run_queue_wait_s  # noqa: E402
from grpo_core.rollout.weights.digest import fingerprint_of, spot_digest  # noqa: E402
from grpo_core.rollout.weights.sync import Sender, TensorFile  # noqa: E402
from grpo_core.rollout.wire import CHECKSUM, checksum  # noqa: E402

GOALS = {"shm": 0.25, "http": 0.05}
DIGEST_GOAL = 0.05
WARM = 2
CORES = os.sched_getaffinity(0)
CROWDED = 0.1  # of the wall time that both sides may have waited for a core
Tensors = list[tuple[str, torch.Tensor]]


class Receiver:
    """The receiving process: our rollout server around a stand-in engine that copies weights."""

    def __init__(self) -> None:
        """Start the process on another core than the sender's."""
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        program = [sys.executable, "-m", "benchmarks.programs.receiver"]
        self.process = subprocess.Popen(
            program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        os.sched_setaffinity(self.process.pid, {max(CORES)})
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def read_timings(self) -> dict[str, Any]:
        """Return the engine's times of its last load."""
        return self.request("GET", "/timings")

    def request(self, method: str, path: str, body: Any = None, headers: Any = None) -> dict[str, Any]:
        """Send an HTTP request."""
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


def model(mib: int) -> Tensors:
    """Return random float32 tensors of a Llama's shapes: width 1,024, vocabulary 16,384, two layers or more."""
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


def measure(tensors: Tensors, rounds: int) -> list[dict[str, dict[str, float]]]:
    """Return the seconds of wall and CPU time, for each round by transport."""
    copies = [torch.zeros_like(value) for _, value in tensors]
    receiver = Receiver()
    senders = {kind: Sender(kind, receiver.load, receiver.upload) for kind in GOALS}
    measured = []
    for version in range(rounds + WARM):
        began = read_clocks()
        for copy, (_, value) in zip(copies, tensors, strict=True):
            copy.copy_(value)
        times = {"memcpy": dict(zip(("wall", "cpu"), elapsed(began), strict=True))}
        for kind, sender in senders.items():
            receiver.read_timings()
            began, waited_before = read_clocks(), run_queue_wait_s()
            sender.send(tensors, version)
            spent, waited_s = elapsed(began), run_queue_wait_s() - waited_before
            times[kind] = _add_receiver(tensors, version, spent, receiver.read_timings())
            times[kind]["waited"] = (waited_s + times[kind]["waited"]) / spent[0]
        measured.append(times)
    receiver.process.communicate()
    return measured[WARM:]


def _add_receiver(
    tensors: Tensors, version: int, spent: tuple[float, float], timings: dict[str, Any]
) -> dict[str, float]:
    """Return the times of sender and receiver together; raise if the digests of the weights differ."""
    began = read_clocks()
    digest = spot_digest(tensors, version)
    wall, cpu = elapsed(began)
    if digest != timings["digest"]:
        raise RuntimeError(f"version {version}: {timings['digest']} arrived, {digest} was sent")
    return {
        "wall": spent[0],
        "cpu": spent[1] + timings["cpu_s"],
        "waited": timings["waited_s"],
        "load_wall": timings["load"][0],
        "load_cpu": timings["load"][1],
        "digest_wall": wall + timings["digesting"][0],
        "digest_cpu": cpu + timings["digesting"][1],
    }


def describe(values: list[float], goal: float | None = None, *, most: bool = False, free: bool = True) -> str:
    """Return median, interval, and whether the goal is met; `most`: lower is better; `free`: two cores were free."""
    middle, low, high = interval(values)
    passed = goal is not None and (middle <= goal if most else middle >= goal)
    word = ("pass" if passed else "MISS") if free else "not measured: no two cores were free"
    verdict = "" if goal is None else f" goal {goal:g} {word}"
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]{verdict}"


def main(mib: int = 512, rounds: int = 15) -> None:
    """Print three lines of results for each transport."""
    os.sched_setaffinity(0, {min(CORES)})
    torch.set_num_threads(1)
    tensors = model(mib)
    measured = measure(tensors, rounds)
    size = sum(value.numel() * 4 for _, value in tensors) / 1e9
    memcpy = size / interval([times["memcpy"]["wall"] for times in measured])[0]
    print(f"{size:.3f} GB of float32, {rounds} rounds; memcpy {memcpy:.2f} GB/s; medians [95 %] of ratios")
    print("arrived, loaded: memcpy / sync, until the receiver has it, until its engine has copied it, too")
    for kind, goal in GOALS.items():
        busy = interval([times[kind]["waited"] for times in measured])[0]
        for clock in ("wall", "cpu"):
            pairs = [(times["memcpy"][clock], times[kind]) for times in measured]
            arrived = [base / (times[clock] - times[f"load_{clock}"]) for base, times in pairs]
            loaded = [base / times[clock] for base, times in pairs]
            digest = [times[f"digest_{clock}"] / times[clock] for _, times in pairs]
            judged = describe(arrived, goal if clock == "wall" else None, free=busy <= CROWDED)
            print(
                f"{kind:6} {clock:4} arrived {judged}; loaded {describe(loaded)}; "
                f"digests {describe(digest, DIGEST_GOAL, most=True)}"
            )
        print(f"{'':6} waited for a core: {busy:.1%} of the wall, both sides together", flush=True)
    part = [("a", torch.randn(2**23))]
    began = read_clocks()
    fingerprint_of(part)
    speed = 32 * 2**20 / 1e9 / elapsed(began)[1]
    print(f"the exact fingerprint (SHA-256), one side: {speed:.2f} GB per s of CPU")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
