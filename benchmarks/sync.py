"""Measure the bandwidth of weight sync by shared memory against memcpy of the same bytes, in turns.

`python benchmarks/sync.py [MIB [ROUNDS]]`: 512 MiB of random float32 tensors of a Llama's shapes, 15 rounds. Each round
copies them in this process, and then sends them to another process, which copies them into tensors of its own. One
thread a side, each pinned to a core. The ratios are of one round: what the machine does to one side of a comparison it
does to the other. Wall times mean something on a machine with two cores free; CPU times, of both sides together, mean
something on any.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from benchmarks.measure import interval  # noqa: E402
from benchmarks.programs.receiver import now, since  # noqa: E402
from grpo_core.rollout.pipes import read_message, write_message  # noqa: E402
from grpo_core.rollout.weights.digest import spot_digest  # noqa: E402
from grpo_core.rollout.weights.sync import Sender  # noqa: E402

GOAL = 0.5
DIGEST_GOAL = 0.05
WARM = 2
CORES = os.sched_getaffinity(0)
Tensors = list[tuple[str, torch.Tensor]]


class Receiver:
    """The receiving process."""

    def __init__(self) -> None:
        """Start it on another core than the sender's."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.programs.receiver"],
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        os.sched_setaffinity(self.process.pid, {max(CORES)})

    def call(self, method: str, arguments: dict[str, Any], payload: object = None) -> dict[str, Any]:
        """Call a method by the control channel."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert payload is None  # shared memory needs none
        write_message(self.process.stdin, {"method": method, "arguments": arguments})
        answer = read_message(self.process.stdout)
        if answer is None:
            raise RuntimeError(f"the receiver ended with {self.process.wait()}")
        return dict(answer["result"])


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
    """Return, by round, seconds of wall and CPU time of memcpy and of the transport."""
    copies = [torch.zeros_like(value) for _, value in tensors]
    receiver = Receiver()
    sender = Sender("shm", receiver.call)
    measured = []
    for version in range(rounds + WARM):
        began = now()
        for copy, (_, value) in zip(copies, tensors, strict=True):
            copy.copy_(value)
        memcpy = dict(zip(("wall", "cpu"), since(began), strict=True))
        receiver.call("facts", {})
        began = now()
        sender.send(tensors, version)
        spent = since(began)
        sync = _add_receiver(tensors, version, spent, receiver.call("facts", {}))
        measured.append({"memcpy": memcpy, "sync": sync})
    sender.close()
    receiver.process.communicate()
    return measured[WARM:]


def _add_receiver(
    tensors: Tensors, version: int, spent: tuple[float, float], facts: dict[str, Any]
) -> dict[str, float]:
    """Return the seconds of both sides, once the digests agree."""
    began = now()
    digest = spot_digest(tensors, version)
    wall, cpu = since(began)
    if digest != facts["digest"]:
        raise RuntimeError(f"version {version}: {facts['digest']} arrived, {digest} was sent")
    return {
        "wall": spent[0],
        "cpu": spent[1] + facts["cpu_s"],
        "load_wall": facts["load"][0],
        "load_cpu": facts["load"][1],
        "digest_wall": wall + facts["digesting"][0],
        "digest_cpu": cpu + facts["digesting"][1],
    }


def describe(values: list[float], goal: float | None = None, *, most: bool = False) -> str:
    """Return the median and interval, and whether they reach the goal."""
    middle, low, high = interval(values)
    verdict = ""
    if goal is not None:
        verdict = f" goal {goal:g} {'pass' if (middle <= goal if most else middle >= goal) else 'MISS'}"
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]{verdict}"


def main(mib: int = 512, rounds: int = 15) -> None:
    """Print a line for wall time, and one for CPU time."""
    os.sched_setaffinity(0, {min(CORES)})
    torch.set_num_threads(1)
    tensors = model(mib)
    measured = measure(tensors, rounds)
    size = sum(value.numel() * 4 for _, value in tensors) / 1e9
    memcpy = size / interval([times["memcpy"]["wall"] for times in measured])[0]
    print(f"{size:.3f} GB of float32, {rounds} rounds; memcpy {memcpy:.2f} GB/s; medians [95 %] of ratios")
    print("arrived, loaded: memcpy / sync, until the receiver has it, until its engine has copied it, too")
    for clock in ("wall", "cpu"):
        pairs = [(times["memcpy"][clock], times["sync"]) for times in measured]
        arrived = [base / (times[clock] - times[f"load_{clock}"]) for base, times in pairs]
        loaded = [base / times[clock] for base, times in pairs]
        digest = [times[f"digest_{clock}"] / times[clock] for _, times in pairs]
        print(
            f"shm {clock:4} arrived {describe(arrived, GOAL if clock == 'wall' else None)}; "
            f"loaded {describe(loaded)}; digests {describe(digest, DIGEST_GOAL, most=True)}",
            flush=True,
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
