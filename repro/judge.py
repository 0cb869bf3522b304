"""Says what came of an attempt: from the work it did, or from the exception it ended with."""

from __future__ import annotations

import ast
import linecache
import textwrap
import time
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING

from repro.base import Attempt, InapplicableError, Outcome

if TYPE_CHECKING:
    from repro.base import Repro, Work

_LONGEST = 12  # lines of an assertion


def attempt(repro: Repro, trigger: str, mitigation: str | None) -> Attempt:
    """Carries out one attempt in this process."""
    empty = Attempt(trigger, mitigation, Outcome.ERROR, simulated=repro.simulated)
    asked = repro.trigger(trigger)
    started = time.perf_counter()
    try:
        work, seconds = asked.run(mitigation), time.perf_counter() - started
        done = by_work(empty, work, silent=asked.silent)
    except Exception as error:  # noqa: BLE001 - each kind means something else
        seconds = time.perf_counter() - started
        done = by_exception(empty, repro.assertion, error)
    return recorded(repro, replace(done, seconds=round(seconds, 4)))


def by_work(empty: Attempt, work: Work, *, silent: bool) -> Attempt:
    """Judges an attempt that came to its end.

    Without a mitigation, only a silent failure can still have happened. With one, it helped if all work was done.
    """
    if empty.mitigation is not None:
        outcome = Outcome.MITIGATED if work.complete else Outcome.NOT_MITIGATED
    else:
        outcome = Outcome.REPRODUCED if silent and not work.complete else Outcome.NOT_REPRODUCED
    return replace(
        empty,
        outcome=outcome,
        detail=work.describe(),
        finished=work.finished,
        expected=len(work.due),
        tokens=work.tokens,
        leaked_blocks=work.leaked_blocks,
    )


def by_exception(empty: Attempt, sought: str, error: Exception) -> Attempt:
    """Judges an attempt that ended with an exception: it counts only if it's an assertion in upstream's code."""
    if isinstance(error, InapplicableError):
        return replace(empty, outcome=Outcome.INAPPLICABLE, detail=str(error))
    if not isinstance(error, AssertionError):
        return replace(empty, detail=of_the_harness(error))
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    path = below_site_packages(last.filename)
    if path is None:
        return replace(empty, detail=of_the_harness(error))
    found = statement(last.filename, last.lineno or 0)
    if empty.mitigation is not None:
        outcome = Outcome.NOT_MITIGATED
        detail = "the same assertion" if found == sought else "another assertion in its place"
    else:
        outcome = Outcome.REPRODUCED if found == sought else Outcome.NOT_REPRODUCED
        detail = "" if found == sought else f"another assertion than the one sought ({sought})"
    return replace(
        empty,
        outcome=outcome,
        assertion=found,
        where=f"{path}:{last.lineno}",
        function=last.name,
        chain=tuple(_link(frame) for frame in frames[1:]),  # the first is the harness calling the trigger
        detail=detail,
    )


def recorded(repro: Repro, done: Attempt) -> Attempt:
    """Compares the outcome with the one that the repro has on record: triggers reproduce, mitigations help or not."""
    if done.mitigation is None:
        told = {Outcome.REPRODUCED: True, Outcome.NOT_REPRODUCED: False}
        return replace(done, as_recorded=told.get(done.outcome))
    if done.outcome not in {Outcome.MITIGATED, Outcome.NOT_MITIGATED}:
        return done
    helps = done.trigger in repro.mitigation(done.mitigation).helps
    return replace(done, as_recorded=helps == (done.outcome is Outcome.MITIGATED))


def of_the_harness(error: BaseException) -> str:
    """Names an exception that proves nothing about upstream, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"the harness failed{place}: {type(error).__name__}: {error}"


def below_site_packages(filename: str) -> str | None:
    """Returns a file's path as its wheel has it; None for a file that no wheel brought."""
    for marker in ("/site-packages/", "/dist-packages/"):
        _, found, rest = filename.rpartition(marker)
        if found:
            return rest
    return None


def statement(filename: str, line: int) -> str:
    """Returns the assertion that begins on a line, without its message, on one line however upstream broke it."""
    lines = linecache.getlines(filename)[line - 1 : line + _LONGEST]
    for count in range(1, len(lines) + 1):
        try:
            [node] = ast.parse(textwrap.dedent("".join(lines[:count]))).body
        except (SyntaxError, ValueError):
            continue
        if isinstance(node, ast.Assert):
            return f"assert {ast.unparse(node.test)}"
        break
    return lines[0].strip() if lines else ""


def _link(frame: traceback.FrameSummary) -> str:
    """Names a frame: upstream's by the path in its wheel, ours by the path in this package."""
    path = below_site_packages(frame.filename)
    if path is None:
        _, found, rest = frame.filename.rpartition("/repro/")
        path = f"repro/{rest}" if found else frame.filename
    return f"{frame.name} ({path}:{frame.lineno})"
