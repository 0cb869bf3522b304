"""Bandwidth of each way of weight sync, against memcpy of the same bytes, in turns.

`python benchmarks/sync.py [MIB [ROUNDS]]`: 256 MiB of random float32 tensors, 15 rounds. Each round copies them in this
process, and then sends them by each transport to another process, which copies them into tensors of its own. Wall time,
one thread a side, each pinned to a core. The ratios are of one round: what the machine does to one side of a
comparison it does to the other.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from benchmarks.measure import interval  # noqa: E402
from grpo_core.engines.frames import read_frame, write_frame  # noqa: E402
from grpo_core.sync import open_sender  # noqa: E402
from grpo_core.sync.digest import spot_digest  # noqa: E402
from grpo_core.sync.flat import Flat  # noqa: E402
from grpo_core.sync.http import upload  # noqa: E402
from grpo_core.weights import fingerprint_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

PIPED = ("shm", "inline", "files", "gloo")
GOALS = {"shm": 0.5, "http": 0.25}
DIGEST_GOAL = 0.05
WARM = 2


class Side:
    """The receiving process."""

    def __init__(self, kind: str, root: str) -> None:
        """Starts it."""
        own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        program = [sys.executable, "-m", "benchmarks.programs.receiver", kind, root]
        self.process = subprocess.Popen(
            program, env=os.environ | own, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline()) if kind == "http" else 0

    def call(self, method: str, arguments: dict[str, Any], payload: Flat | None = None) -> dict[str, Any]:
        """The control channel."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        extra = () if payload is None else (payload.size, payload.pieces())
        write_frame(self.process.stdin, {"method": method, "arguments": arguments}, *extra)
        answer = read_frame(self.process.stdout)
        if answer is None:
            raise RuntimeError(f"the receiver ended with {self.process.wait()}")
        return dict(answer[0]["result"])

    def request(self, method: str, path: str, body: Any = None, headers: Any = None) -> dict[str, Any]:
        """The same over HTTP."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, body, headers or {})
            return dict(json.loads(connection.getresponse().read()))

    def upload(self, tensors: list[tuple[str, torch.Tensor]], version: int) -> None:
        """A version in the body of a request."""
        headers, body = upload(Flat(tensors, version))
        self.request("POST", "/weights", body, {**headers, "X-Policy-Version": str(version)})

    def close(self) -> None:
        """Ends it."""
        self.process.communicate()


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """How long a call takes, and its result."""
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def model(mib: int) -> list[tuple[str, torch.Tensor]]:
    """Matrices of 4 MiB, each with a norm beside it."""
    torch.manual_seed(0)
    tensors = []
    for layer in range(mib // 4):
        tensors.append((f"layers.{layer}.weight", torch.randn(1024, 1024)))
        tensors.append((f"layers.{layer}.norm", torch.randn(1024)))
    return tensors


def measured(mib: int, rounds: int) -> list[dict[str, dict[str, float]]]:
    """Seconds by round and transport: of the whole, of the engine's own copy, of both digests."""
    tensors = model(mib)
    copies = [torch.zeros_like(value) for _, value in tensors]
    found = []
    with tempfile.TemporaryDirectory() as root:
        pipe, server = Side("pipe", root), Side("http", root)
        senders = {kind: open_sender(kind, pipe.call, timeout_s=60, root=Path(root)) for kind in PIPED}

        def memcpy() -> None:
            for copy, (_, value) in zip(copies, tensors, strict=True):
                copy.copy_(value)

        for version in range(rounds + WARM):
            times = {"memcpy": {"whole": seconds(memcpy)[0]}}
            for kind in (*PIPED, "http"):
                if kind == "http":
                    whole, _ = seconds(lambda: server.upload(tensors, version))  # noqa: B023
                    facts = server.request("GET", "/facts")
                else:
                    whole, _ = seconds(lambda: senders[kind].send(tensors, version))  # noqa: B023
                    facts = pipe.call("facts", {})
                digest_s, digest = seconds(lambda: spot_digest(tensors, version))  # noqa: B023
                if digest != facts["digest"]:
                    raise RuntimeError(
                        f"{kind}, version {version}: {facts['digest']} is held, {digest} was sent"
                    )
                times[kind] = {
                    "whole": whole,
                    "load": facts["load_s"],
                    "digest": digest_s + facts["digest_s"],
                }
            found.append(times)
        for sender in senders.values():
            sender.close()
        pipe.close()
        server.close()
    return found[WARM:]


def shown(values: list[float], goal: float | None = None, *, most: bool = False) -> str:
    """Median and interval, and whether that is the goal."""
    middle, low, high = interval(values)
    passed = goal is not None and (middle <= goal if most else middle >= goal)
    verdict = "" if goal is None else f" (goal {goal:g}: {'pass' if passed else 'MISS'})"
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]{verdict}"


def main(mib: int = 256, rounds: int = 15) -> None:
    """One line a transport."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    found = measured(mib, rounds)
    size = sum(value.numel() * 4 for _, value in model(mib)) / 1e9
    memcpy = interval([times["memcpy"]["whole"] for times in found])[0]
    print(f"{size:.3f} GB of float32, {rounds} rounds; memcpy {size / memcpy:.2f} GB/s; medians [95 %]")
    print(
        "ratios to memcpy of the same round: until the receiver has it; until its engine has copied it, too"
    )
    for kind in (*PIPED, "http"):
        each = [(times["memcpy"]["whole"], times[kind]) for times in found]
        whole = interval([times["whole"] for _, times in each])[0]
        there = [base / (times["whole"] - times["load"]) for base, times in each]
        loaded = [base / times["whole"] for base, times in each]
        digest = [times["digest"] / times["whole"] for _, times in each]
        print(f"{kind:6} {size / whole:5.2f} GB/s loaded | there {shown(there, GOALS.get(kind))}", end=" | ")
        print(f"loaded {shown(loaded)} | digests {shown(digest, DIGEST_GOAL, most=True)}", flush=True)
    part = model(32)
    exact, _ = seconds(lambda: fingerprint_of(part))
    print(f"the exact fingerprint (SHA-256) of one side: {32 * 2**20 / 1e9 / exact:.2f} GB/s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
