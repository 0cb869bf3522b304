"""Run the worker process, which imports the attempts' modules once and forks a process for each attempt.

The import of vLLM takes seconds, an attempt milliseconds. A hang, a crash or a corrupted scheduler affects no other
attempt, because each has its own process. After an attempt its temporary folder and all its processes are removed, also
servers and clusters in other sessions.

The plan has the registry (name of a module with a mapping `REPROS`), the time limit and the attempts. The worker sends
an import problem or "" first, and then, if all imports worked, the result of each attempt.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import time
from collections.abc import Mapping, Sequence

from repro import judge, processes
from repro.registry import Attempt, AttemptOutcome, Repro


def main() -> None:
    """Import the modules and send the problem, if any; without one, run the attempts and send each result."""
    writer, plan = processes.read_plan()
    processes.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the runner, which ends this process
    repros: Mapping[str, Repro] = importlib.import_module(plan["registry"]).REPROS
    problem = import_all([repros[code] for code, *_ in plan["attempts"]])
    writer.send(problem)
    for code, trigger, mitigation in () if problem else plan["attempts"]:
        writer.send(run_isolated_attempt(repros[code], trigger, mitigation, plan["limit_s"]))


def import_all(repros: Sequence[Repro]) -> str:
    """Import the modules that attempts need; return a message if one of these imports fails, else an empty text."""
    for name in dict.fromkeys(module for repro in repros for module in repro.modules):
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - some packages exit
            return f"importing {name} failed: {judge.describe_harness_error(error)}"
    for name in dict.fromkeys(module for repro in repros for module in repro.helpful_modules):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    return ""


def run_isolated_attempt(repro: Repro, trigger: str, mitigation: str | None, limit_s: float) -> Attempt:
    """Run an attempt in a separate process; a time-out and a crash become its outcome."""
    started = time.monotonic()
    try:
        return processes.run_isolated(lambda: judge.run_attempt(repro, trigger, mitigation), limit_s)
    except (TimeoutError, ChildProcessError) as error:
        outcome = AttemptOutcome.TIMEOUT if isinstance(error, TimeoutError) else AttemptOutcome.ERROR
        seconds = round(time.monotonic() - started, 4)
        return Attempt(trigger, mitigation, outcome, detail=str(error), seconds=seconds)


if __name__ == "__main__":
    main()
