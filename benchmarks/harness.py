"""Harness of the benchmarks: run training programs step by step in turns; compute medians and bootstrap intervals.

The programs of a comparison are separate processes that exist at the same time. They take steps alternately, only one
at a time (`step_in_turns`), so that noise of the machine affects all alike. `Program` starts a program and requests
steps by lines on its standard input. `StepReporter` is the counterpart in that program, which reports each step as a
line of JSON. `run_to_end` runs a program that takes no steps. The programs get OMP_NUM_THREADS=1 and HF_HUB_OFFLINE=1.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_PATHS = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
# Warm-up rounds, which are not counted.
WARM = 2
VARIABLES = {"PYTHONPATH": _PATHS, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


class Program:
    """A child process that takes one training step on each request, and reports it."""

    def __init__(self, python: str, *arguments: str) -> None:
        """Start an interpreter with these arguments and this repository on its import path."""
        self._process = subprocess.Popen(
            [python, *arguments],
            env=os.environ | VARIABLES,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def step(self) -> dict[str, Any]:
        """Let the program take its next step; return its report with the step's wall time (`wall_s`).

        Raises:
            RuntimeError: The program ended during the step.
            BrokenPipeError: The program ended before.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        began = time.perf_counter()
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with exit code {self._process.wait()}")
        return json.loads(line) | {"wall_s": time.perf_counter() - began}

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()


def run_to_end(python: str, *arguments: str) -> None:
    """Run an interpreter with these arguments and this repository on its import path; raise an error if it fails."""
    subprocess.run([python, *arguments], env=os.environ | VARIABLES, check=True, capture_output=True)


class StepReporter:
    """Reports the steps of the measured program: requests come from stdin, reports go to stdout, all else to stderr."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._cpu_s = time.process_time()

    def wait_for_request(self) -> None:
        """Wait for the request of the next step; end the process if standard input is closed."""
        if not sys.stdin.readline():
            os._exit(0)
        self._cpu_s = time.process_time()

    def report_step(self, **facts: object) -> None:
        """Report the step's CPU seconds (`cpu_s`) and these facts as a line of JSON, then wait for the next request."""
        facts = {"cpu_s": time.process_time() - self._cpu_s, **facts}
        self._answers.write(json.dumps(facts) + "\n")
        self.wait_for_request()


def step_in_turns(programs: Sequence[Program], count: int) -> list[list[dict[str, Any]]]:
    """Step programs alternately and end them.

    Returns:
        `count` rounds with the report of each program, without the warm-up rounds.
    """
    rounds = [[program.step() for program in programs] for _ in range(count + WARM)]
    for program in programs:
        program.close()
    return rounds[WARM:]


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median of the values and the ends of its 95 % bootstrap interval, from 2,000 resamples."""
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[50], medians[1949]
