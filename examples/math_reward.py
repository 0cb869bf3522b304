"""Reward mathematical answers by math-verify: `reward.functions = ["examples/math_reward.py:math_answers"]`.

Needs math-verify 0.8 or newer (`pip install 'math-verify>=0.8'`).
"""

from __future__ import annotations

import functools
import importlib
import logging
import re
import signal
import threading
import warnings
from collections.abc import Callable
from typing import Any

CPU_S = 5.0  # processor time that the check of one answer may take


def math_answers(completions: list[str], **columns: list[Any]) -> list[float | None]:
    """Return 1 if math-verify finds the completion equal to the expected answer, else 0; None without an answer.

    The expected answer is in the column `answer`, or else `solution`. math-verify limits its time by SIGALRM. A loaded
    machine then gives other rewards, and outside of the main thread math-verify 0.6 and 0.7 find every answer wrong
    (REW001). Without a limit `9**9**9**9` takes forever. So the limit of math-verify is off, and processor time is
    limited here, which does not depend on the load of the machine.

    Raises:
        ValueError: Neither column exists, or an expected answer can't be parsed, so that no completion could be right.
        RuntimeError: Called outside of the main thread, where the limit does not work.
    """
    expected = columns.get("answer", columns.get("solution"))
    if expected is None:
        raise ValueError(f"the data needs a column answer or solution, found {', '.join(columns)}")
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("math_answers works in the main thread only, where its time can be limited")
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it would warn that its own limit is off
    importlib.import_module("math_verify")  # takes a second or two, which must not count for an answer
    pairs = zip(expected, completions, strict=True)
    return [None if gold is None else _math_score(str(gold), completion) for gold, completion in pairs]


def _math_score(gold: str, completion: str) -> float:
    """Return 1 or 0; a check that takes too long is 0, with a warning."""
    if not (expected := _limited(_parse_expected, gold)):
        raise ValueError(f"math-verify (0.8 or newer) can't read the expected answer {gold!r}")
    equal = _limited(_is_equal, expected, completion)
    if equal is None:
        text = f"math: not checked in {CPU_S:g} s, so 0: the completion that ends in {completion[-80:]!r}"
        warnings.warn(text, stacklevel=2)
    return float(equal or 0)


class _OutOfTime(BaseException):  # math-verify catches every Exception, and finds the answer wrong
    """Raised by the timer."""


def _out_of_time(*_: Any) -> None:
    raise _OutOfTime


def _limited(check: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; return None if it takes more than `CPU_S` seconds of processor time."""
    before = signal.signal(signal.SIGPROF, _out_of_time)
    try:
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        try:
            return check(*arguments)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except _OutOfTime:
        return None
    finally:
        signal.signal(signal.SIGPROF, before)


@functools.lru_cache
def _parse_expected(gold: str) -> tuple[Any, ...]:
    r"""Parse the expected answer by math-verify; empty if it does not equal itself.

    Bare LaTeX is boxed: otherwise math-verify reads only the first number, 2 of `2\sqrt{3}`.
    """
    library = importlib.import_module("math_verify")
    marked = re.search(r"\$.*\$|\\boxed|\\\(|\\\[", gold, re.DOTALL)  # one $ alone is money
    parsed = library.parse(gold if marked else rf"\boxed{{{gold}}}", parsing_timeout=None)
    return tuple(parsed) if library.verify(parsed, parsed, timeout_seconds=None) else ()


def _is_equal(expected: tuple[Any, ...], completion: str) -> bool:
    library = importlib.import_module("math_verify")
    parsed = library.parse(completion, parsing_timeout=None)
    return bool(library.verify(list(expected), parsed, timeout_seconds=None))
