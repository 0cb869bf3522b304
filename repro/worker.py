"""Run the worker process, which imports the attempts' modules once and forks each attempt.

The import of vLLM takes seconds, an attempt milliseconds. Each attempt has a separate process and process group, so
that a hang, a crash or a corrupted scheduler affects no other attempt. After an attempt its temporary folder and all
its processes are removed, also servers and clusters in other sessions. The plan names the registry (a module with a
mapping `REPROS`), the time limit and the attempts; the worker reports an import problem or "", then each attempt.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import time
from collections.abc import Mapping, Sequence

from repro import judge, processes
from repro.base import Attempt, AttemptOutcome, Repro


def main() -> None:
    """Import modules, report the result, then carry out the attempts of the plan."""
    writer, plan = processes.read_plan()
    processes.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the runner, which ends this process
    repros: Mapping[str, Repro] = importlib.import_module(plan["registry"]).REPROS
    problem = import_all([repros[code] for code, *_ in plan["attempts"]])
    writer.send(problem)
    for code, trigger, mitigation in () if problem else plan["attempts"]:
        writer.send(attempt(repros[code], trigger, mitigation, plan["limit_s"]))


def import_all(repros: Sequence[Repro]) -> str:
    """Import the modules that attempts need; return a message if an import failed, else an empty text."""
    for name in dict.fromkeys(module for repro in repros for module in repro.modules):
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - some packages exit
            return f"importing {name} failed: {judge.describe_harness_error(error)}"
    for name in dict.fromkeys(module for repro in repros for module in repro.helpful_modules):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    return ""


def attempt(repro: Repro, trigger: str, mitigation: str | None, limit_s: float) -> Attempt:
    """Carry out an attempt in a separate process."""
    started = time.monotonic()
    try:
        return processes.isolated(lambda: judge.attempt(repro, trigger, mitigation), limit_s)
    except (TimeoutError, ChildProcessError) as error:
        outcome = AttemptOutcome.TIMEOUT if isinstance(error, TimeoutError) else AttemptOutcome.ERROR
        seconds = round(time.monotonic() - started, 4)
        return Attempt(trigger, mitigation, outcome, detail=str(error), seconds=seconds)


if __name__ == "__main__":
    main()
