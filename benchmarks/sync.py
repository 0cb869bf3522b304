"""Bandwidth of each way of weight sync, against memcpy of the same bytes, in turns.

`python benchmarks/sync.py [MIB [ROUNDS]]`: 512 MiB of random float32 tensors of a Llama's shapes, 15 rounds. Each round
copies them in this process, and then sends them by each transport to another process, which copies them into tensors
of its own. One thread a side, each pinned to a core. The ratios are of one round: what the machine does to one side of
a comparison it does to the other. Wall times mean something on a machine with two cores free: how long both sides
waited for one is printed, and more than a tenth of the wall is no measurement. CPU times, of both sides together, mean
something on any.
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
from benchmarks.programs.receiver import now, since, waited  # noqa: E402
from grpo_core.rollout.pipes import read_message, write_message  # noqa: E402
from grpo_core.rollout.weights.digest import checksum, fingerprint_of, spot_digest  # noqa: E402
from grpo_core.rollout.weights.flat import Flat  # noqa: E402
from grpo_core.rollout.weights.sync import Sender  # noqa: E402

PIPED = ("shm",)
GOALS = {"shm": 0.5, "http": 0.25}
DIGEST_GOAL = 0.05
WARM = 2
CORES = os.sched_getaffinity(0)
CROWDED = 0.1  # of the wall that both sides may have waited for a core


class Side:
    """The receiving process."""

    def __init__(self, kind: str) -> None:
        """Starts it."""
        own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        program = [sys.executable, "-m", "benchmarks.programs.receiver", kind]
        self.process = subprocess.Popen(
            program, env=os.environ | own, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        os.sched_setaffinity(
            self.process.pid, {max(CORES)}
        )  # a core of its own: it would inherit the sender's
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline()) if kind == "http" else 0

    def call(self, method: str, arguments: dict[str, Any], payload: Flat | None = None) -> dict[str, Any]:
        """The control channel."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert payload is None  # only announced transports go by this channel
        write_message(self.process.stdin, {"method": method, "arguments": arguments})
        answer = read_message(self.process.stdout)
        if answer is None:
            raise RuntimeError(f"the receiver ended with {self.process.wait()}")
        return dict(answer["result"])

    def facts(self) -> dict[str, Any]:
        """What the engine says of its last load."""
        return self.request("GET", "/facts") if self.port else self.call("facts", {})

    def request(self, method: str, path: str, body: Any = None, headers: Any = None) -> dict[str, Any]:
        """The same over HTTP."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, body, headers or {})
            return dict(json.loads(connection.getresponse().read()))

    def upload(self, tensors: list[tuple[str, torch.Tensor]], version: int) -> None:
        """A version in the body of a request."""
        data = Flat(tensors, version).joined()
        headers = {"X-Content-Blocks": checksum(data), "X-Policy-Version": str(version)}
        self.request("POST", "/weights", memoryview(data.numpy()), headers)

    def close(self) -> None:
        """Ends it."""
        self.process.communicate()


def model(mib: int) -> list[tuple[str, torch.Tensor]]:
    """Random float32 tensors of a Llama's shapes: width 1,024, vocabulary 16,384, two layers or as many as fit."""
    torch.manual_seed(0)
    shapes = {"embed": (16384, 1024), "head": (16384, 1024), "norm": (1024,)}
    for layer in range(max(2, (mib - 128) // 49)):
        of = f"layers.{layer}"
        shapes |= {f"{of}.{name}": (1024, 1024) for name in ("q", "k", "v", "o")}
        shapes |= {f"{of}.gate": (2816, 1024), f"{of}.up": (2816, 1024), f"{of}.down": (1024, 2816)}
        shapes |= {f"{of}.norm1": (1024,), f"{of}.norm2": (1024,)}
    return [(name, torch.randn(shape)) for name, shape in shapes.items()]


def measured(mib: int, rounds: int) -> list[dict[str, dict[str, float]]]:
    """Of each round and transport: seconds by the wall and of CPU."""
    tensors = model(mib)
    copies = [torch.zeros_like(value) for _, value in tensors]
    found = []
    pipe, server = Side("pipe"), Side("http")
    senders = {kind: Sender(kind, pipe.call) for kind in PIPED}
    for version in range(rounds + WARM):
        began = now()
        for copy, (_, value) in zip(copies, tensors, strict=True):
            copy.copy_(value)
        times = {"memcpy": dict(zip(("wall", "cpu"), since(began), strict=True))}
        for kind in (*PIPED, "http"):
            side = server if kind == "http" else pipe
            side.facts()
            began, stood = now(), waited()
            if kind == "http":
                server.upload(tensors, version)
            else:
                senders[kind].send(tensors, version)
            spent, stood = since(began), waited() - stood
            times[kind] = _costs(tensors, version, spent, side.facts())
            times[kind]["waited"] = (stood + times[kind]["waited"]) / spent[0]
        found.append(times)
    for sender in senders.values():
        sender.close()
    pipe.close()
    server.close()
    return found[WARM:]


def _costs(
    tensors: list[tuple[str, torch.Tensor]], version: int, spent: tuple[float, float], facts: dict[str, Any]
) -> dict[str, float]:
    began = now()
    digest = spot_digest(tensors, version)
    wall, cpu = since(began)
    if digest != facts["digest"]:
        raise RuntimeError(f"version {version}: {facts['digest']} is held, {digest} was sent")
    return {
        "wall": spent[0],
        "cpu": spent[1] + facts["cpu_s"],
        "waited": facts["waited_s"],
        "sender": spent[1],
        "load_wall": facts["load"][0],
        "load_cpu": facts["load"][1],
        "digest_wall": wall + facts["digesting"][0],
        "digest_cpu": cpu + facts["digesting"][1],
    }


def shown(
    values: list[float], goal: float | None = None, *, most: bool = False, measured: bool = True
) -> str:
    """Median and interval, and whether that is the goal."""
    middle, low, high = interval(values)
    passed = goal is not None and (middle <= goal if most else middle >= goal)
    word = ("pass" if passed else "MISS") if measured else "not measured: no two cores were free"
    verdict = "" if goal is None else f" goal {goal:g} {word}"
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]{verdict}"


def main(mib: int = 512, rounds: int = 15) -> None:
    """Two lines a transport."""
    os.sched_setaffinity(0, {min(CORES)})
    torch.set_num_threads(1)
    found = measured(mib, rounds)
    size = sum(value.numel() * 4 for _, value in model(mib)) / 1e9
    memcpy = interval([times["memcpy"]["wall"] for times in found])[0]
    print(
        f"{size:.3f} GB of float32, {rounds} rounds; memcpy {size / memcpy:.2f} GB/s; medians [95 %] of ratios"
    )
    print("arrived, loaded: memcpy / sync, until the receiver has it, until its engine has copied it, too")
    for kind in (*PIPED, "http"):
        busy = interval([times[kind]["waited"] for times in found])[0]
        for clock in ("wall", "cpu"):
            free, goal = clock == "cpu" or busy <= CROWDED, GOALS.get(kind) if clock == "wall" else None
            each = [(times["memcpy"][clock], times[kind]) for times in found]
            there = [base / (times[clock] - times[f"load_{clock}"]) for base, times in each]
            loaded = [base / times[clock] for base, times in each]
            digest = [times[f"digest_{clock}"] / times[clock] for _, times in each]
            print(
                f"{kind:6} {clock:4} arrived {shown(there, goal, measured=free)}; loaded {shown(loaded)}",
                end="; ",
            )
            print(f"digests {shown(digest, DIGEST_GOAL, most=True)}", flush=True)
        # What is streamed takes, on two free cores, about as long as the busier side is busy.
        sides = [
            (times["memcpy"]["cpu"], times[kind]["sender"], times[kind]["cpu"] - times[kind]["sender"])
            for times in found
        ]
        sender, receiver = (interval([side[place] for side in sides])[0] / size for place in (1, 2))
        busier = [
            base / max(mine, theirs - times[kind]["load_cpu"])
            for (base, mine, theirs), times in zip(sides, found, strict=True)
        ]
        print(f"{'':6} waited for a core: {busy:.1%} of the wall, both sides together", end="; ")
        print(f"CPU s/GB: sender {sender:.3f}, receiver {receiver:.3f} (loading included)", end="; ")
        print(f"memcpy / the busier side without loading {shown(busier)}", flush=True)
    part = [("a", torch.randn(2**23))]
    began = now()
    fingerprint_of(part)
    print(
        f"the exact fingerprint (SHA-256), one side: {32 * 2**20 / 1e9 / since(began)[1]:.2f} GB per s of CPU"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
