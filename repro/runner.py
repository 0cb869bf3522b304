"""Runs attempts, each in a process of its own with a time limit.

Importing vLLM takes seconds and an attempt milliseconds, so attempts are forked from a server process that has
imported what they need and done nothing else (`multiprocessing`'s forkserver). A hang, a crash or a poisoned
scheduler ends with its own process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from repro.base import Attempt, NotApplicableError, Outcome, Repro, Work

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext

IMPORT_LIMIT_S = 240.0
Say = Callable[[str], None]


def run(
    repro: Repro, *, triggers: Iterable[str], mitigations: Iterable[str | None], limit_s: float, say: Say
) -> list[Attempt]:
    """Runs every trigger under every mitigation (None: without), after a look whether it can occur here at all."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["repro.runner", "repro.preload"])
    mitigations = list(mitigations)
    reason = _in_process(context, _applicable, (repro.code,), IMPORT_LIMIT_S)
    attempts = []
    for trigger in triggers:
        for mitigation in mitigations:
            attempt = Attempt(
                trigger=trigger, mitigation=mitigation, outcome=Outcome.ERROR, simulated=repro.simulated
            )
            if isinstance(reason, _Failure):
                attempt = replace(attempt, outcome=reason.outcome, detail=reason.detail)
            elif reason:
                attempt = replace(attempt, outcome=Outcome.INAPPLICABLE, detail=reason)
            else:
                attempt = _attempt(context, repro, attempt, limit_s)
            under = f" with {mitigation}" if mitigation else ""
            say(f"{repro.code} {trigger}{under}: {attempt.outcome.value}")
            attempts.append(attempt)
    return attempts


def judge(repro: Repro, attempt: Attempt) -> Attempt:
    """Runs one attempt in this process and says what came of it."""
    trigger = repro.trigger(attempt.trigger)
    bare = attempt.mitigation is None
    start = time.perf_counter()
    try:
        attempt = _judge_work(attempt, trigger.run(attempt.mitigation), silent=trigger.silent)
    except NotApplicableError as error:
        return replace(attempt, outcome=Outcome.INAPPLICABLE, detail=str(error))
    except AssertionError as error:
        attempt = _judge_assertion(repro, attempt, error)
    attempt = replace(attempt, seconds=round(time.perf_counter() - start, 4))
    if bare or attempt.outcome not in {Outcome.MITIGATED, Outcome.NOT_MITIGATED}:
        return attempt
    helps = attempt.trigger in repro.mitigation(str(attempt.mitigation)).helps
    return replace(attempt, as_recorded=helps == (attempt.outcome is Outcome.MITIGATED))


def _judge_work(attempt: Attempt, work: Work, *, silent: bool) -> Attempt:
    if attempt.mitigation is not None:
        outcome = Outcome.MITIGATED if work.complete else Outcome.NOT_MITIGATED
    else:
        outcome = Outcome.REPRODUCED if silent and not work.complete else Outcome.NOT_REPRODUCED
    finished = len(work.expected) - len(work.missing)
    return replace(
        attempt, outcome=outcome, detail=work.describe(), finished=finished, expected=len(work.expected)
    )


def _judge_assertion(repro: Repro, attempt: Attempt, error: AssertionError) -> Attempt:
    """An assertion counts only if it came out of upstream's code; ours failing is an error of the harness."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    path = _below_site_packages(last.filename)
    if path is None:
        return replace(
            attempt, detail=f"the harness failed at {last.filename}:{last.lineno}: {last.line} {error}"
        )
    same = (last.line or "").startswith(repro.assertion)
    if attempt.mitigation is not None:
        outcome = Outcome.NOT_MITIGATED
        detail = "the same assertion" if same else "another assertion of the same cause"
    else:
        outcome = Outcome.REPRODUCED if same else Outcome.NOT_REPRODUCED
        detail = "" if same else "another assertion than the one sought"
    stack = tuple(frame.name for frame in frames if _below_site_packages(frame.filename))
    where = f"{path}:{last.lineno}"
    return replace(
        attempt,
        outcome=outcome,
        assertion=last.line,
        where=where,
        function=last.name,
        stack=stack,
        detail=detail,
    )


def _below_site_packages(filename: str) -> str | None:
    for marker in ("site-packages", "dist-packages"):
        _, found, rest = filename.replace(os.sep, "/").rpartition(f"/{marker}/")
        if found:
            return rest
    return None


class _Failure:
    """A process that gave no answer: why."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        self.outcome, self.detail = outcome, detail


def _attempt(context: ForkServerContext, repro: Repro, attempt: Attempt, limit_s: float) -> Attempt:
    answer = _in_process(context, _judge_by_code, (repro.code, attempt), limit_s)
    if isinstance(answer, _Failure):
        return replace(attempt, outcome=answer.outcome, detail=answer.detail)
    assert isinstance(answer, Attempt)
    return answer


def _applicable(code: str) -> str | None:
    from repro.registry import REPROS

    return REPROS[code].inapplicable()


def _judge_by_code(code: str, attempt: Attempt) -> Attempt:
    from repro.registry import REPROS

    return judge(REPROS[code], attempt)


def _in_process(
    context: ForkServerContext, function: Callable[..., Any], arguments: tuple[Any, ...], limit_s: float
) -> Any:
    """Calls a function in a process of its own; a crash, hang or exception comes back as a `_Failure`."""
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sending, function, arguments), daemon=False)
    process.start()
    sending.close()
    try:
        if not receiving.poll(limit_s):
            return _Failure(Outcome.TIMEOUT, f"no answer within {limit_s:g} s")
        return receiving.recv()
    except EOFError:
        process.join()
        return _Failure(
            Outcome.ERROR, f"its process ended with {_exit(process.exitcode)} and without an answer"
        )
    finally:
        receiving.close()
        _end(process)


def _end(process: Any) -> None:
    """Ends the process and whatever it started: it leads a process group of its own."""
    process.join(timeout=1)
    if process.is_alive():
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()
        process.join()
    process.close()


def _exit(code: int | None) -> str:
    return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"


def _answer(sending: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this group
    try:
        answer = function(*arguments)
    except BaseException as error:  # noqa: BLE001 - the parent must hear of whatever happened
        frame = traceback.extract_tb(error.__traceback__)[-1]
        answer = _Failure(Outcome.ERROR, f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})")
    sending.send(answer)
    sending.close()
