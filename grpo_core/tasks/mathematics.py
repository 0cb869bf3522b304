"""Mathematical answers, checked by math-verify in a separate process."""

from __future__ import annotations

import atexit
import faulthandler
import functools
import importlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from grpo_core.config import ConfigError
from grpo_core.rollout.pipes import end_child, read_message, start_child, write_message

CPU_S = 5.0  # processor time that one answer may take to check
STUCK_S = 120.0  # wall time after which the checking process gives up on one answer
_CHECKER_LOCK = threading.Lock()  # a user's function may call `math_answers` in another thread


def math_answers(completions: list[str], **columns: list[Any]) -> list[float | None]:
    """Return 1 if math-verify finds the completion equal to the column `answer`, else `solution`; None without one.

    math-verify limits its time by SIGALRM, which works in the main thread only: elsewhere 0.6 and 0.7 find everything
    wrong, 0.8 and 0.9 raise, and without a limit `9**9**9**9` takes forever. So it runs in its own process with a limit
    of processor time, which does not depend on the load of the machine.

    Raises:
        ConfigError: Neither column exists.
        ValueError: An expected answer can't be parsed: no completion could be right.
        ChildProcessError: The process died on a sample.
    """
    expected = columns.get("answer", columns.get("solution"))
    if expected is None:
        raise ConfigError(
            f"reward function math needs a column answer or solution, found {', '.join(columns)}"
        )
    pairs = zip(expected, completions, strict=True)
    return [None if gold is None else _check(str(gold), completion) for gold, completion in pairs]


@functools.lru_cache
def _checker() -> subprocess.Popen[bytes]:
    child = start_child(["grpo_core.tasks.mathematics"], threads=1)
    atexit.register(_end_checker, child)
    return child


def _end_checker(child: subprocess.Popen[bytes]) -> None:
    end_child(child, grace_s=1.0)
    if child.stdout is not None:
        child.stdout.close()


def _check(gold: str, completion: str) -> float:
    """Query the checking process; a check that takes too long is 0, with a warning."""
    with _CHECKER_LOCK:
        child, answer = _checker(), None
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            write_message(child.stdin, {"gold": gold, "completion": completion, "cpu_s": CPU_S})
            answer = read_message(child.stdout)
        finally:
            if answer is None:  # a late answer must not be used for another sample
                _checker.cache_clear()
                _end_checker(child)
    if answer is None:
        raise ChildProcessError("the process that runs math-verify ended")
    if not answer["readable"]:
        raise ValueError(f"math-verify (0.8 or newer) can't read the expected answer {gold!r}")
    if answer["equal"] is None:
        text = f"math: not checked in {CPU_S:g} s, so 0: the completion that ends in {completion[-80:]!r}"
        warnings.warn(text, stacklevel=2)
    return float(answer["equal"] or 0)


class _OutOfTime(BaseException):  # math-verify catches every Exception, and finds the answer wrong
    """Raised in the checking process by its timer."""


def _out_of_time(*_: Any) -> None:
    raise _OutOfTime


def _limited(cpu_s: float, check: Callable[..., Any], *arguments: Any) -> Any:
    """Run the check; None if it took too long."""
    try:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            return check(*arguments)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except _OutOfTime:
        return None


@functools.lru_cache
def _expected(gold: str) -> tuple[Any, ...]:
    r"""Parse the expected answer by math-verify; empty if it does not equal itself.

    Bare LaTeX is boxed: otherwise math-verify reads only the first number, 2 of `2\sqrt{3}`.
    """
    library = importlib.import_module("math_verify")
    marked = re.search(r"\$.*\$|\\boxed|\\\(|\\\[", gold, re.DOTALL)  # one $ alone is money
    parsed = library.parse(gold if marked else rf"\boxed{{{gold}}}", parsing_timeout=None)
    return tuple(parsed) if library.verify(parsed, parsed, timeout_seconds=None) else ()


def _equal(expected: tuple[Any, ...], completion: str) -> bool:
    library = importlib.import_module("math_verify")
    parsed = library.parse(completion, parsing_timeout=None)
    return bool(library.verify(list(expected), parsed, timeout_seconds=None))


def _serve() -> None:
    """Run the checking process: answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text must not get between the messages
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it would warn that its own limit is off
    signal.signal(signal.SIGPROF, _out_of_time)
    importlib.import_module("math_verify")  # takes a second or two, which must not count for an answer
    while (question := read_message(sys.stdin.buffer)) is not None:
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        gold, completion, cpu_s = (question[key] for key in ("gold", "completion", "cpu_s"))
        expected = _limited(cpu_s, _expected, gold)
        equal = _limited(cpu_s, _equal, expected, completion) if expected else None
        faulthandler.cancel_dump_traceback_later()
        write_message(answers, {"readable": bool(expected), "equal": equal})


if __name__ == "__main__":
    _serve()
