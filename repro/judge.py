"""Run an attempt in this process, and judge its outcome by its tally or by the exception that ended it.

`run_attempt` does both. `InapplicableError` makes the attempt inapplicable. Another exception is evidence if it is an
assertion or of the class that the repro names, and upstream's code raised it; else it is an error of the harness (our
code). `compare_with_record` sets whether the outcome is the recorded one. `failed_statement` returns the statement on a
line of a file, and `below_site_packages` the file's path in its wheel.
"""

import ast
import linecache
import re
import textwrap
import traceback
from dataclasses import replace

from repro.registry import Attempt, AttemptOutcome, InapplicableError, Repro, Tally, UpstreamFailureError

_LONGEST = 12  # maximum number of lines after the first of an assertion


def run_attempt(repro: Repro, trigger: str, mitigation: str | None) -> Attempt:
    """Run an attempt in this process; an exception becomes its outcome."""
    empty = Attempt(trigger, mitigation, AttemptOutcome.ERROR)
    events = repro.trigger(trigger)
    try:
        done = judge_tally(empty, events.run(mitigation), silent=events.silent)
    except Exception as error:  # noqa: BLE001 - the class of the exception decides the outcome
        done = judge_exception(empty, repro, error)
    return compare_with_record(repro, done)


def judge_tally(empty: Attempt, tally: Tally, *, silent: bool) -> Attempt:
    """Judge an attempt that ended without an exception.

    Without a mitigation, only a silent failure can have occurred. A mitigation helped if the tally is complete.
    """
    if empty.mitigation is not None:
        outcome = AttemptOutcome.MITIGATED if tally.complete else AttemptOutcome.NOT_MITIGATED
    else:
        failed = silent and not tally.complete
        outcome = AttemptOutcome.REPRODUCED if failed else AttemptOutcome.NOT_REPRODUCED
    return replace(
        empty,
        outcome=outcome,
        detail=tally.describe(),
        finished=tally.finished,
        expected=len(tally.due),
        tokens=tally.tokens,
        leaked_blocks=tally.leaked_blocks,
    )


def judge_exception(empty: Attempt, repro: Repro, error: Exception) -> Attempt:
    """Judge an attempt that ended with an exception: inapplicable, a result of upstream's code, or a harness error.

    An exception is upstream's if it is an assertion or of the class that the repro names, and its last frame is
    upstream's. An UpstreamFailureError needs only one frame of upstream's code.
    """
    if isinstance(error, InapplicableError):
        return replace(empty, outcome=AttemptOutcome.INAPPLICABLE, detail=str(error))
    is_data = isinstance(error, UpstreamFailureError)
    failure = error if isinstance(error, UpstreamFailureError) else UpstreamFailureError.from_exception(error)
    # The first frame of an exception of this process is the call of the trigger in `run_attempt`.
    frames = failure.frames if is_data else failure.frames[1:]
    upstream = [frame for frame in frames if below_site_packages(frame[0])]
    # In another process the last frame may be of compiled code, with a file name of the machine that built it.
    raised_by_harness = not is_data and (
        failure.kind not in {"AssertionError", repro.raises} or upstream[-1:] != list(frames[-1:])
    )
    if not upstream or raised_by_harness:
        return replace(empty, detail=describe_harness_error(error))
    filename, line, function = upstream[-1]
    assertion = failed_statement(filename, line)
    same = (
        bool(repro.failure)
        and failure.kind == repro.raises
        and repro.assertion in {"", assertion}
        and repro.function in {"", function}
        and repro.message in str(error)
    )
    noun = "assertion" if failure.kind == "AssertionError" else "failure"
    if empty.mitigation is not None:
        outcome = AttemptOutcome.NOT_MITIGATED
        message = f"the same {noun}" if same else f"another {noun} in its place"
    elif same:
        outcome, message = AttemptOutcome.REPRODUCED, ""
    else:
        outcome = AttemptOutcome.NOT_REPRODUCED
        message = f"another {noun} than the expected one ({repro.failure})"
    text = " ".join(str(error).split()) if is_data and not same else ""
    return replace(
        empty,
        outcome=outcome,
        assertion=assertion,
        where=f"{below_site_packages(filename)}:{line}",
        function=function,
        chain=tuple(_link(*frame) for frame in frames),
        detail="; ".join(filter(None, (message, text, failure.note))),
    )


def compare_with_record(repro: Repro, done: Attempt) -> Attempt:
    """Set `as_recorded`: whether the trigger reproduced, or the mitigation's result is the recorded one.

    It stays None for other outcomes.
    """
    if done.mitigation is None:
        agrees = {AttemptOutcome.REPRODUCED: True, AttemptOutcome.NOT_REPRODUCED: False}
        return replace(done, as_recorded=agrees.get(done.outcome))
    if done.outcome not in {AttemptOutcome.MITIGATED, AttemptOutcome.NOT_MITIGATED}:
        return done
    helps = done.trigger in repro.mitigation(done.mitigation).helps
    return replace(done, as_recorded=helps == (done.outcome is AttemptOutcome.MITIGATED))


def describe_harness_error(error: BaseException) -> str:
    """Return a line with the location and the text of an exception that proves nothing about upstream's code."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"the harness failed{place}: {type(error).__name__}: {error}"


def below_site_packages(filename: str) -> str | None:
    """Return a file's path in its wheel; None for a file outside of site-packages."""
    below = re.match(r".*/(?:site|dist)-packages/(.*)", filename)
    return below[1] if below else None


def failed_statement(filename: str, line: int) -> str:
    """Return the assertion that begins on a line of a file, without its message; else the line.

    The result is empty if the file or the line does not exist.
    """
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
    """Return a frame as text; the path is that in upstream's wheel, or that in our package."""
    path = below_site_packages(filename)
    if path is None:
        _, separator, rest = filename.rpartition("/repro/")
        path = f"repro/{rest}" if separator else filename
    return f"{function} ({path}:{line})"
