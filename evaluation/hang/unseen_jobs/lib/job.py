"""Functions for the programs of the unseen jobs: report a state, wait for a role, start ranks, compute."""

import os
import pathlib
import subprocess
import sys
import time


def ready(role: str) -> None:
    """Report that this process reached its final state, under the role that the label uses."""
    folder = pathlib.Path(os.environ["JOB_DIR"], "ready")
    partial = folder / f".{os.getpid()}"
    partial.write_text(str(os.getpid()))
    partial.rename(folder / role.replace(" ", "_"))


def wait_for(role: str) -> int:
    """Wait until the process with this role is ready, and return its pid."""
    path = pathlib.Path(os.environ["JOB_DIR"], "ready", role.replace(" ", "_"))
    while not path.exists():
        time.sleep(0.05)
    return int(path.read_text())


def start_ranks(count: int, script: str = "train.py") -> list[subprocess.Popen[bytes]]:
    """Start one process for each rank, with the variables that torchrun sets."""
    return [
        subprocess.Popen(
            [sys.executable, script],
            env=os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)},
        )
        for rank in range(count)
    ]


def compute(seconds: float) -> float:
    """Multiply small matrices for this time, as a step of training does."""
    import torch

    torch.set_num_threads(1)
    matrix = torch.rand(128, 128)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        matrix = torch.tanh(matrix @ matrix)
    return float(matrix.sum())


def count_primes(seconds: float) -> int:
    """Count primes in plain Python for this time, as a rule-based reward does."""
    end, candidate, found = time.monotonic() + seconds, 2, 0
    while time.monotonic() < end:
        found += all(candidate % divisor for divisor in range(2, int(candidate**0.5) + 1))
        candidate += 1
    return found
