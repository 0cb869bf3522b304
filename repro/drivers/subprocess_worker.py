"""Run part of an attempt in another process: it gets a plan and returns a report, both as JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from repro import processes
from repro.base import ElsewhereError


def run_program(module: str, plan: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a module of ours as a program, and return its report; the program dies with this process.

    Args:
        module: one that calls `answer_plan` when it is run.
        plan: its input.
        environment: all its environment variables.

    Raises:
        RuntimeError: it reported nothing.
    """
    reading, writing = os.pipe()
    command = [sys.executable, "-m", module, str(writing), str(os.getpid()), json.dumps(plan)]
    with subprocess.Popen(command, env=environment, pass_fds=[writing], stdin=subprocess.DEVNULL) as process:
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as stream:
            message = stream.read()
    if not message:
        ended = processes.how_it_ended(process.returncode)
        raise RuntimeError(f"{module} ended with {ended}, and reported nothing")
    report: dict[str, Any] = json.loads(message)
    return report


def answer_plan(run: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Run as the main program of such a module: read the plan, run it, report the result."""
    descriptor, parent, plan = sys.argv[1:]
    processes.die_with(int(parent), signal.SIGKILL)
    os.set_inheritable(int(descriptor), False)  # child processes would keep the pipe open
    report = run(json.loads(plan))
    with os.fdopen(int(descriptor), "w", encoding="utf-8") as stream:
        json.dump(report, stream)


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return an exception as data of a report."""
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "kind": type(error).__name__,
        "text": str(error),
        "frames": [(frame.filename, frame.lineno or 0, frame.name) for frame in frames],
    }


def make_error(failure: Mapping[str, Any], note: str = "") -> ElsewhereError:
    """Return the exception to raise in this process for one in a report."""
    return ElsewhereError(failure["kind"], failure["text"], failure["frames"], note)
