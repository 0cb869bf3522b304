"""Run the worker process, which imports the attempts' modules once and forks each attempt.

Importing vLLM takes seconds, an attempt milliseconds. Each attempt gets a separate process and process group; a hang, a
crash or a corrupted scheduler ends with it. After an attempt all its processes and its temporary folder are removed,
also servers and clusters in other sessions. The worker reads commands as lines of JSON from standard input and writes
answers as lines of JSON to standard output, one at a time; prints of imported packages go to standard error.

Usage: python -m repro.worker REGISTRY PARENT CODE...   (REGISTRY: a module with a dict REPROS)
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence

from repro import judge, processes
from repro.base import Attempt, AttemptOutcome, Repro


def main(arguments: Sequence[str]) -> None:
    """Import modules, report the result, then carry out attempts until standard input ends."""
    registry, parent, *codes = arguments
    processes.die_with(int(parent), signal.SIGTERM)
    processes.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the runner, which ends this process
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    repros: Mapping[str, Repro] = importlib.import_module(registry).REPROS
    print(json.dumps({"problem": import_all([repros[code] for code in codes])}), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        done = attempt(repros[order["code"]], order["trigger"], order["mitigation"], order["limit_s"])
        print(json.dumps(done.to_json()), file=answers, flush=True)


def import_all(repros: Sequence[Repro]) -> str | None:
    """Import the modules that attempts need; report what went wrong, or None."""
    for name in dict.fromkeys(module for repro in repros for module in repro.modules):
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - some packages exit
            return f"importing {name} failed: {judge.describe_harness_error(error)}"
    for name in dict.fromkeys(module for repro in repros for module in repro.helpful_modules):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    return None


def attempt(repro: Repro, trigger: str, mitigation: str | None, limit_s: float) -> Attempt:
    """Carry out one attempt in a process of its own."""
    started = time.monotonic()
    try:
        answer = processes.isolated(lambda: judge.attempt(repro, trigger, mitigation).to_json(), limit_s)
        return Attempt.from_json(answer)
    except (TimeoutError, ChildProcessError) as error:
        outcome = AttemptOutcome.TIMEOUT if isinstance(error, TimeoutError) else AttemptOutcome.ERROR
        seconds, simulated = round(time.monotonic() - started, 4), repro.simulates(trigger)
        return Attempt(trigger, mitigation, outcome, simulated=simulated, detail=str(error), seconds=seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
