"""Run a part of an attempt in another process, which gets an input (the plan) and returns a report, both as JSON."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from repro import processes
from repro.base import ElsewhereError


def run_program(module: str, plan: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a module of ours that calls `answer_plan`, and return its report; the program ends with this process.

    Args:
        module: Name of the module.
        plan: Input of the program.
        environment: All environment variables of the program.

    Raises:
        RuntimeError: The program ended without a report.
    """
    with processes.program(module, plan, environment) as (process, reader):
        report: dict[str, Any] | None = processes.receive(reader)
        if report is None:
            ended = processes.how_it_ended(process.wait())
            raise RuntimeError(f"{module} ended with {ended}, and reported nothing")
    return report


def answer_plan(run: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Read the plan, call `run` with it, and report the result; the main program of a module for `run_program`."""
    writer, plan = processes.read_plan(signal.SIGKILL)
    writer.send(run(plan))


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return an exception as data for a report."""
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "kind": type(error).__name__,
        "text": str(error),
        "frames": [(frame.filename, frame.lineno or 0, frame.name) for frame in frames],
    }


def make_error(failure: Mapping[str, Any], note: str = "") -> ElsewhereError:
    """Return the exception to raise in this process for the exception in a report."""
    return ElsewhereError(failure["kind"], failure["text"], failure["frames"], note)
