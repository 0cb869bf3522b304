"""Judge the outcome of an attempt by its work, or by the exception that ended it."""

from __future__ import annotations

import ast
import linecache
import textwrap
import time
import traceback
from dataclasses import replace

from repro.base import Attempt, AttemptOutcome, ElsewhereError, InapplicableError, Repro, Work

_LONGEST = 12  # lines of an assertion


def attempt(repro: Repro, trigger: str, mitigation: str | None) -> Attempt:
    """Carry out one attempt in this process."""
    empty = Attempt(trigger, mitigation, AttemptOutcome.ERROR, simulated=repro.simulates(trigger))
    requests = repro.trigger(trigger)
    started = time.perf_counter()
    try:
        work, seconds = requests.run(mitigation), time.perf_counter() - started
        done = by_work(empty, work, silent=requests.silent)
    except Exception as error:  # noqa: BLE001 - each kind means something else
        seconds = time.perf_counter() - started
        done = by_exception(empty, repro, error)
    return recorded(repro, replace(done, seconds=round(seconds, 4)))


def by_work(empty: Attempt, work: Work, *, silent: bool) -> Attempt:
    """Judge an attempt that came to its end.

    Without a mitigation, only a silent failure can still have happened. With one, it helped if all work was done.
    """
    if empty.mitigation is not None:
        outcome = AttemptOutcome.MITIGATED if work.complete else AttemptOutcome.NOT_MITIGATED
    else:
        outcome = AttemptOutcome.REPRODUCED if silent and not work.complete else AttemptOutcome.NOT_REPRODUCED
    return replace(
        empty,
        outcome=outcome,
        detail=work.describe(),
        finished=work.finished,
        expected=len(work.due),
        tokens=work.tokens,
        leaked_blocks=work.leaked_blocks,
    )


def by_exception(empty: Attempt, repro: Repro, error: Exception) -> Attempt:
    """Judge an attempt that ended with an exception: it counts only if it came out of upstream's code.

    In this process that is an assertion, or the exception that the repro names: anything else is the harness's fault.
    An exception of another process was already judged there.
    """
    if isinstance(error, InapplicableError):
        return replace(empty, outcome=AttemptOutcome.INAPPLICABLE, detail=str(error))
    elsewhere = isinstance(error, ElsewhereError)
    kind = error.kind if isinstance(error, ElsewhereError) else type(error).__name__
    frames = _frames(error)
    inside = [frame for frame in frames if below_site_packages(frame[0])]
    # Elsewhere the last frame may be of compiled code, which names a file of the machine it was built on.
    reported = elsewhere or (kind in {"AssertionError", repro.raises} and inside[-1:] == frames[-1:])
    if not inside or not reported:
        return replace(empty, detail=of_the_harness(error))
    filename, line, function = inside[-1]
    result = statement(filename, line)
    same = kind == repro.raises and result == repro.assertion and repro.function in {"", function}
    if empty.mitigation is not None:
        outcome = AttemptOutcome.NOT_MITIGATED
    else:
        outcome = AttemptOutcome.REPRODUCED if same else AttemptOutcome.NOT_REPRODUCED
    return replace(
        empty,
        outcome=outcome,
        assertion=result,
        where=f"{below_site_packages(filename)}:{line}",
        function=function,
        chain=tuple(_link(*frame) for frame in frames),
        detail=_describe_failure(empty, repro, error, kind=kind, same=same),
    )


def _frames(error: Exception) -> list[tuple[str, int, str]]:
    """Return (path, line, function) from the trigger on, outermost first."""
    if isinstance(error, ElsewhereError):
        return list(error.frames)
    frames = [
        (frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)
    ]
    return frames[1:]  # the first is the harness calling the trigger


def _describe_failure(empty: Attempt, repro: Repro, error: Exception, *, kind: str, same: bool) -> str:
    """Return the failure and its notes."""
    noun = "assertion" if kind == "AssertionError" else "failure"
    if same:
        message = "" if empty.mitigation is None else f"the same {noun}"
    elif empty.mitigation is not None:
        message = f"another {noun} in its place"
    else:
        message = f"another {noun} than the one sought ({repro.assertion})"
    elsewhere = isinstance(error, ElsewhereError)
    text = str(error) if elsewhere and not same else ""
    note = error.note if isinstance(error, ElsewhereError) else ""
    return "; ".join(part for part in (message, " ".join(text.split()), note) if part)


def recorded(repro: Repro, done: Attempt) -> Attempt:
    """Compare the outcome with the one on record: a trigger reproduces or is safe, a mitigation helps or does not."""
    if done.mitigation is None:
        occurs = repro.trigger(done.trigger).occurs
        reported = {AttemptOutcome.REPRODUCED: occurs, AttemptOutcome.NOT_REPRODUCED: not occurs}
        return replace(done, as_recorded=reported.get(done.outcome))
    if done.outcome not in {AttemptOutcome.MITIGATED, AttemptOutcome.NOT_MITIGATED}:
        return done
    helps = done.trigger in repro.mitigation(done.mitigation).helps
    return replace(done, as_recorded=helps == (done.outcome is AttemptOutcome.MITIGATED))


def of_the_harness(error: BaseException) -> str:
    """Name an exception that proves nothing about upstream, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"the harness failed{place}: {type(error).__name__}: {error}"


def below_site_packages(filename: str) -> str | None:
    """Return a file's path as its wheel has it; None for a file that no wheel brought."""
    for marker in ("/site-packages/", "/dist-packages/"):
        _, result, rest = filename.rpartition(marker)
        if result:
            return rest
    return None


def statement(filename: str, line: int) -> str:
    """Return the assertion that begins on a line, without its message, on one line however upstream broke it."""
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


def _link(filename: str, line: int, function: str) -> str:
    """Name a frame: upstream's by the path in its wheel, ours by the path in this package."""
    path = below_site_packages(filename)
    if path is None:
        _, result, rest = filename.rpartition("/repro/")
        path = f"repro/{rest}" if result else filename
    return f"{function} ({path}:{line})"
