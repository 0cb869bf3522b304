"""Run attempts through worker processes, with a time limit for each.

A worker imports packages and forks attempts (`repro.worker`). The runner receives one result for each attempt, and
turns a failure of the worker into the outcome `error` or `timeout` of the attempts that are left.
"""

from __future__ import annotations

import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from repro import processes
from repro.registry import Attempt, AttemptOutcome, Repro

Plan = Sequence[tuple[str, "str | None"]]
IMPORT_LIMIT_S = 240.0
# Seconds beyond an attempt's limit in which the worker can report that the limit passed.
GRACE_S = 10.0


def run(
    repros: Mapping[str, Repro],
    plans: Mapping[str, Plan],
    *,
    limit_s: float,
    report_line: Callable[[str], None],
    registry: str = "repro.issues",
    import_limit_s: float = IMPORT_LIMIT_S,
) -> dict[str, list[Attempt]]:
    """Run (trigger, mitigation) pairs through worker processes; return the attempts by code.

    Attempts that cannot be tried in this environment start no worker, and are the last ones of their code.

    Args:
        repros: Repros by code.
        plans: (trigger, mitigation) pairs to try, by code.
        limit_s: Time limit of an attempt in seconds.
        report_line: Function that is called with a line for each import, for each outcome from a worker, and for each
            code without an applicable trigger.
        registry: Module in which the worker finds the same repros.
        import_limit_s: Seconds in which a worker must import the modules that its attempts need.
    """
    results: dict[str, list[Attempt]] = {code: [] for code in plans}
    inapplicable = {code: _inapplicable_triggers(repros[code]) for code in plans}
    for code, reasons in inapplicable.items():
        if len(set(reasons.values())) == 1 and len(reasons) == len(repros[code].triggers):
            report_line(f"{code}: inapplicable: {next(iter(reasons.values()))}")
    due = [
        (code, *pair) for code, plan in plans.items() for pair in plan if pair[0] not in inapplicable[code]
    ]
    # Repros that need the same modules share a worker.
    for modules in dict.fromkeys(repros[code].modules for code, *_ in due):
        attempts = [item for item in due if repros[item[0]].modules == modules]
        plan = {"registry": registry, "limit_s": limit_s, "attempts": attempts}
        if modules:
            report_line(f"importing {', '.join(modules)}")
        reports = _run_worker(plan, import_limit_s)
        for (code, trigger, mitigation), attempt in zip(attempts, reports, strict=True):
            done = replace(attempt, simulated=repros[code].simulates(trigger))
            results[code].append(done)
            under = f" with {mitigation}" if mitigation else ""
            report_line(f"{code} {trigger}{under}: {done.outcome.value}")
    for code, reasons in inapplicable.items():
        for trigger, mitigation in [pair for pair in plans[code] if pair[0] in reasons]:
            attempt = Attempt(trigger, mitigation, AttemptOutcome.INAPPLICABLE, detail=reasons[trigger])
            results[code].append(replace(attempt, simulated=repros[code].simulates(trigger)))
    return results


def _inapplicable_triggers(repro: Repro) -> dict[str, str]:
    """Return, for each trigger that cannot be tried in this environment, the reason."""
    reason = repro.inapplicable_reason()
    reasons = {item.name: reason or item.missing_requirement() for item in repro.triggers}
    return {name: text for name, text in reasons.items() if text}


class WorkerError(Exception):
    """Raised when the worker does not answer; has the outcome for the attempts that are left."""

    def __init__(self, outcome: AttemptOutcome, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


def _run_worker(plan: dict[str, Any], import_limit_s: float) -> Iterator[Attempt]:
    """Run a worker and yield its attempts; if it fails, yield the remaining attempts with the reason."""
    remaining, outcome = deque(plan["attempts"]), AttemptOutcome.ERROR
    with processes.start_module("repro.worker", plan) as (process, reader):
        try:
            problem = _receive(process, reader, import_limit_s, "import what the attempts need")
            while remaining and not problem:
                limit_s = plan["limit_s"] + GRACE_S
                attempt: Attempt = _receive(process, reader, limit_s, f"answer on {remaining[0][1]}")
                remaining.popleft()
                yield attempt
        except WorkerError as error:
            outcome, problem = error.outcome, str(error)
        finally:
            _end_worker(process)
    for _code, trigger, mitigation in remaining:
        yield Attempt(trigger, mitigation, outcome, detail=problem)


def _receive(process: subprocess.Popen[bytes], reader: Connection, limit_s: float, action: str) -> Any:
    """Return the worker's next answer.

    Raises:
        WorkerError: There was no answer in time, or the worker ended.
    """
    try:
        answer = processes.receive(reader, limit_s)
    except TimeoutError as error:
        message = f"the worker did not {action} within {limit_s:g} s"
        raise WorkerError(AttemptOutcome.TIMEOUT, message) from error
    if answer is None:
        ended = processes.describe_exit(process.wait(timeout=5))
        raise WorkerError(AttemptOutcome.ERROR, f"the worker ended with {ended}")
    return answer


def _end_worker(process: subprocess.Popen[bytes]) -> None:
    """End the worker; on SIGTERM it first kills the running attempt and all processes that the attempt started."""
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
    processes.kill_group(process.pid)
