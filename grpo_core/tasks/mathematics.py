"""Mathematical answers, checked by math-verify within a limit of processor time."""

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

from grpo_core.config import ConfigError

CPU_S = 5.0  # processor time that one answer may take to check


def math_answers(completions: list[str], **columns: list[Any]) -> list[float | None]:
    """Return 1 if math-verify finds the completion equal to the column `answer`, else `solution`; None without one.

    math-verify limits its time by SIGALRM: a loaded machine then gives other rewards, and outside of the main thread
    0.6 and 0.7 find everything wrong (REW001). Without a limit `9**9**9**9` takes forever. So its limit is off, and
    processor time is limited here, which does not depend on the load of the machine.

    Raises:
        ConfigError: Neither column exists.
        ValueError: An expected answer can't be parsed: no completion could be right.
        RuntimeError: Called outside of the main thread, where the limit does not work.
    """
    expected = columns.get("answer", columns.get("solution"))
    if expected is None:
        raise ConfigError(
            f"reward function math needs a column answer or solution, found {', '.join(columns)}"
        )
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("math works in the main thread only, where its time can be limited")
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it would warn that its own limit is off
    importlib.import_module("math_verify")  # takes a second or two, which must not count for an answer
    pairs = zip(expected, completions, strict=True)
    return [None if gold is None else _score(str(gold), completion) for gold, completion in pairs]


def _score(gold: str, completion: str) -> float:
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
    """Run the check; None if it took more than `CPU_S`."""
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
