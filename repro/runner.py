"""Run attempts (a trigger of a repro, with a mitigation or without) in worker processes, with a time limit for each.

`run` runs the attempts. A worker imports the modules that its attempts need once, and forks a process for each attempt:
the import of vLLM takes seconds, an attempt milliseconds. A hang, a crash or a corrupted scheduler affects no other
attempt. After an attempt its temporary folder and all its processes are removed, also servers and clusters in other
sessions.

The worker sends an import problem or "" first, and then, if all imports worked, the result of each attempt. A failure
of the worker becomes the outcome `error` or `timeout` of the attempts that are left.
"""

import contextlib
import importlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection

from repro import judge, processes
from repro.registry import Attempt, AttemptOutcome, Repro

Plan = Sequence[tuple[str, "str | None"]]
Due = tuple[Repro, str, "str | None"]
IMPORT_LIMIT_S = 240.0
# Seconds beyond an attempt's limit in which the worker can report that the limit passed.
GRACE_S = 10.0
END_S = 5.0  # for a worker to end its attempt


def run(
    repros: Mapping[str, Repro],
    plans: Mapping[str, Plan],
    *,
    limit_s: float,
    report_line: Callable[[str], None],
    import_limit_s: float = IMPORT_LIMIT_S,
) -> dict[str, list[Attempt]]:
    """Run (trigger, mitigation) pairs through worker processes; return the attempts by code.

    Attempts that cannot be tried in this environment start no worker, and are the last ones of their code.

    Args:
        repros: Repros by code.
        plans: (trigger, mitigation) pairs to try, by code.
        limit_s: Time limit of an attempt in seconds.
        report_line: Function that is called with a line for each import, and for each outcome from a worker.
        import_limit_s: Seconds in which a worker must import the modules that its attempts need.
    """
    results: dict[str, list[Attempt]] = {code: [] for code in plans}
    # In another process, because the check may import upstream packages, and attempts set variables before they do.
    inapplicable = processes.run_isolated(
        lambda: {code: _inapplicable_triggers(repros[code]) for code in plans}
    )
    due = [
        (repros[code], *pair)
        for code, plan in plans.items()
        for pair in plan
        if pair[0] not in inapplicable[code]
    ]
    # Repros that need the same modules share a worker.
    for modules in dict.fromkeys(repro.modules for repro, *_ in due):
        attempts = [item for item in due if item[0].modules == modules]
        if modules:
            report_line(f"importing {', '.join(modules)}")
        reports = _run_worker(attempts, limit_s, import_limit_s)
        for (repro, trigger, mitigation), attempt in zip(attempts, reports, strict=True):
            results[repro.code].append(attempt)
            under = f" with {mitigation}" if mitigation else ""
            report_line(f"{repro.code} {trigger}{under}: {attempt.outcome.value}")
    for code, reasons in inapplicable.items():
        results[code] += [
            Attempt(trigger, mitigation, AttemptOutcome.INAPPLICABLE, detail=reasons[trigger])
            for trigger, mitigation in plans[code]
            if trigger in reasons
        ]
    return results


def _inapplicable_triggers(repro: Repro) -> dict[str, str]:
    """Return, for each trigger that cannot be tried in this environment, the reason."""
    reason = repro.inapplicable_reason()
    reasons = {item.name: reason or item.missing_requirement() for item in repro.triggers}
    return {name: text for name, text in reasons.items() if text}


def _run_worker(attempts: Sequence[Due], limit_s: float, import_limit_s: float) -> Iterator[Attempt]:
    """Run a worker and yield its attempts; if it fails, yield the remaining attempts with the reason."""
    remaining, outcome = deque(attempts), AttemptOutcome.ERROR

    def work(writer: Connection) -> None:
        problem = import_all([repro for repro, *_ in attempts])
        writer.send(problem)
        for attempt in () if problem else attempts:
            writer.send(run_isolated_attempt(*attempt, limit_s))

    with processes.start(work, signal.SIGTERM) as (worker, reader):
        action, limit = "import what the attempts need", import_limit_s
        try:
            problem: str | None = processes.receive(reader, limit)
            while remaining and problem == "":
                action, limit = f"answer on {remaining[0][1]}", limit_s + GRACE_S
                attempt: Attempt | None = processes.receive(reader, limit)
                if attempt is None:
                    problem = None
                else:
                    remaining.popleft()
                    yield attempt
        except TimeoutError:
            outcome = AttemptOutcome.TIMEOUT
            problem = f"the worker did not {action} within {limit:g} s"
        finally:
            ending = _end_worker(worker, reader)
    for _repro, trigger, mitigation in remaining:
        yield Attempt(trigger, mitigation, outcome, detail=problem or f"the worker ended with {ending}")


def _end_worker(worker: int, reader: Connection) -> str:
    """End the worker; on SIGTERM it first kills the running attempt and all processes that the attempt started."""
    os.kill(worker, signal.SIGTERM)
    with contextlib.suppress(OSError, EOFError):
        while reader.poll(END_S):
            reader.recv()
    return processes.end_process(worker)


def import_all(repros: Sequence[Repro]) -> str:
    """Import the modules that attempts need; return a message if one of these imports fails, else an empty text.

    Then import the helpful modules; an error of such an import is ignored.
    """
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
        attempt = processes.run_isolated(lambda: judge.run_attempt(repro, trigger, mitigation), limit_s)
    except (TimeoutError, ChildProcessError) as error:
        outcome = AttemptOutcome.TIMEOUT if isinstance(error, TimeoutError) else AttemptOutcome.ERROR
        attempt = Attempt(trigger, mitigation, outcome, detail=str(error))
    return replace(attempt, seconds=round(time.monotonic() - started, 4))
