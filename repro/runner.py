"""Run attempts through a worker process, with a time limit for each.

The worker imports packages and forks attempts (`repro.worker`). The runner sends it one attempt at a time, enforces the
time limits, and turns every failure of the worker into an outcome: `error` or `timeout`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

from repro import judge, processes
from repro.base import Attempt, AttemptOutcome, Repro

Plan = Sequence[tuple[str, "str | None"]]
IMPORT_LIMIT_S = 240.0
# Extra seconds beyond an attempt's limit in which the worker reports that the limit passed.
GRACE_S = 10.0


class WorkerError(Exception):
    """Raised when the worker gives no answer."""

    def __init__(self, outcome: AttemptOutcome, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


def run(
    repros: Mapping[str, Repro],
    plans: Mapping[str, Plan],
    *,
    limit_s: float,
    say: Callable[[str], None],
    registry: str = "repro.issues",
    import_limit_s: float = IMPORT_LIMIT_S,
) -> dict[str, list[Attempt]]:
    """Carry out (trigger, mitigation) pairs, by code.

    Args:
        repros: by code.
        plans: what to try of each code.
        limit_s: seconds for one attempt.
        say: called with each outcome.
        registry: module in which the worker finds the same repros.
        import_limit_s: seconds for the worker to import what attempts need.
    """
    results: dict[str, list[Attempt]] = {code: [] for code in plans}
    absent = {code: _inapplicable(repros[code]) for code in plans}
    for code, reasons in absent.items():
        if len(set(reasons.values())) == 1 and len(reasons) == len(repros[code].triggers):
            say(f"{code}: inapplicable: {next(iter(reasons.values()))}")
    due = {code: [pair for pair in plan if pair[0] not in absent[code]] for code, plan in plans.items()}
    # Repros that need the same modules share a worker.
    for modules in dict.fromkeys(repros[code].modules for code in due if due[code]):
        codes = [code for code in due if due[code] and repros[code].modules == modules]
        for code, attempt in _through_worker(codes, due, limit_s, registry, import_limit_s):
            simulated = repros[code].simulates(attempt.trigger)
            attempt = judge.recorded(repros[code], replace(attempt, simulated=simulated))  # noqa: PLW2901
            results[code].append(attempt)
            under = f" with {attempt.mitigation}" if attempt.mitigation else ""
            say(f"{code} {attempt.trigger}{under}: {attempt.outcome.value}")
    for code, reasons in absent.items():
        aside = [Attempt(*pair, AttemptOutcome.INAPPLICABLE) for pair in plans[code] if pair[0] in reasons]
        for attempt in aside:
            simulated, detail = repros[code].simulates(attempt.trigger), reasons[attempt.trigger]
            results[code].append(replace(attempt, simulated=simulated, detail=detail))
    return results


def _inapplicable(repro: Repro) -> dict[str, str]:
    """Returns, by trigger, why it can't be tried here."""
    reason = repro.inapplicable()
    reasons = {item.name: reason or (item.lacks() if item.lacks else None) for item in repro.triggers}
    return {name: text for name, text in reasons.items() if text}


def _through_worker(
    codes: Sequence[str], plans: Mapping[str, Plan], limit_s: float, registry: str, import_limit_s: float
) -> Iterator[tuple[str, Attempt]]:
    """Yield (code, attempt); after the worker is lost, the remaining attempts report it."""
    lost: WorkerError | None = None
    with Worker(registry, codes) as worker:
        try:
            problem = worker.wait_for_answer(import_limit_s, "import what the attempts need")["problem"]
            if problem:
                lost = WorkerError(AttemptOutcome.ERROR, str(problem))
        except WorkerError as error:
            lost = error
        for code in codes:
            for trigger, mitigation in plans[code]:
                if lost is None:
                    try:
                        yield code, worker.attempt(code, trigger, mitigation, limit_s)
                        continue
                    except WorkerError as error:
                        lost = error
                yield code, Attempt(trigger, mitigation, lost.outcome, detail=str(lost))


class Worker:
    """The process that attempts are forked from; leaving the context ends it and what it started."""

    def __init__(self, registry: str, codes: Sequence[str]) -> None:
        command = [sys.executable, "-m", "repro.worker", registry, str(os.getpid()), *codes]
        # A new session: Ctrl-C reaches only this process, which then ends the worker.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders: IO[bytes] = self._process.stdin
        self._answers: IO[bytes] = self._process.stdout
        self._buffer = b""

    def __enter__(self) -> Worker:  # noqa: PYI034 - typing.Self is not in Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._orders.close()
        self._process.terminate()  # it kills the attempt that runs, with everything that started
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
        processes.kill_group(self._process.pid)
        self._process.wait()
        self._answers.close()

    def attempt(self, code: str, trigger: str, mitigation: str | None, limit_s: float) -> Attempt:
        """Run one attempt in the worker.

        Raises:
            WorkerError: the worker itself ended or hangs.
        """
        order = {"code": code, "trigger": trigger, "mitigation": mitigation, "limit_s": limit_s}
        try:
            self._orders.write(json.dumps(order).encode() + b"\n")
            self._orders.flush()
        except BrokenPipeError as error:
            raise self._lost_worker() from error
        return Attempt.from_json(self.wait_for_answer(limit_s + GRACE_S, f"answer on {trigger}"))

    def wait_for_answer(self, limit_s: float, what: str) -> dict[str, Any]:
        """Wait for the worker's next answer.

        Raises:
            WorkerError: there was none in time, or the worker ended.
        """
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise WorkerError(
                        AttemptOutcome.TIMEOUT, f"the worker did not {what} within {limit_s:g} s"
                    )
                part = os.read(self._answers.fileno(), 65536)
                if not part:
                    raise self._lost_worker()
                self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        result: dict[str, Any] = json.loads(line)
        return result

    def _lost_worker(self) -> WorkerError:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return WorkerError(AttemptOutcome.ERROR, "the worker closed its output")
        return WorkerError(AttemptOutcome.ERROR, f"the worker ended with {processes.how_it_ended(code)}")
