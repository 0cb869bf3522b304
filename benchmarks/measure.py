"""Run two programs that take training steps alternately, and compute medians with bootstrap intervals.

The programs of a comparison are separate processes that exist at the same time. Only one of them takes a step at a
time, alternately, so that noise of the machine affects both alike. Each program runs on one thread, and reports the CPU
time of each step.
"""

from __future__ import annotations

import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_PATHS = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
_VARIABLES = {"PYTHONPATH": _PATHS, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


class Program:
    """A child process that takes one training step on each request, and reports the step's cost."""

    def __init__(self, python: str, *arguments: str, **environment: str) -> None:
        """Start the program, with this repository on its import path and one thread."""
        variables = _VARIABLES | environment
        self._process = subprocess.Popen(
            [python, *arguments],
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def step(self) -> dict[str, Any]:
        """Let the program take its next step, and return its report."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with exit code {self._process.wait()}")
        return dict(json.loads(line))

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()


def run_to_end(python: str, *arguments: str) -> None:
    """Run an interpreter with arguments to its end, with this repository on the import path."""
    subprocess.run([python, *arguments], env=os.environ | _VARIABLES, check=True, capture_output=True)


class StepReporter:
    """In a measured program: wait for step requests on stdin, report steps on stdout. Prints go to stderr."""

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
        """Report the CPU seconds of the step and the given facts as a line of JSON, then wait for the next request."""
        facts = {"cpu_s": time.process_time() - self._cpu_s, **facts}
        self._answers.write(json.dumps(facts) + "\n")
        self.wait_for_request()


def run_timed(command: list[str]) -> tuple[float, float, int]:
    """Run a command and discard its standard output; return its wall and CPU seconds, and its exit code."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False, cwd=ROOT)
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.returncode


def step_in_turns(
    first: Program, second: Program, count: int, warm: int = 2
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Step both programs alternately; return `count` pairs of reports, after `warm` pairs that are dropped."""
    return [(first.step(), second.step()) for _ in range(count + warm)][warm:]


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median and the ends of its 95 % bootstrap interval."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[50], medians[1949]
