"""Define the built-in reward functions, and load those of the user."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import logging
import re
import runpy
import signal
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grpo_core.config import ConfigError

CPU_S = 5.0  # processor time that the check of one mathematical answer may take


def letters_in_place(completions: list[str], answer: list[str]) -> list[float]:
    """Return the fraction of letters that are where the answer has them; a wrong length lowers it.

    >>> letters_in_place(["abc", "abd", "ab", "abcabc"], answer=["abc"] * 4)
    [1.0, 0.6666666666666666, 0.6666666666666666, 0.5]
    """
    return [
        sum(a == b for a, b in zip(right, text)) / max(len(right), len(text), 1)  # noqa: B905
        for right, text in zip(answer, completions, strict=True)
    ]


def exact(completions: list[str], answer: list[Any]) -> list[float | None]:
    """Return 1 if the completion is the answer, ignoring white space around both; None where the row has no answer.

    >>> exact([" 42", "42.0", "42"], answer=["42", 42, None])
    [1.0, 0.0, None]
    """
    pairs = zip(answer, completions, strict=True)
    return [None if right is None else float(text.strip() == str(right).strip()) for right, text in pairs]


def soft_overlong(tokens: int, max_tokens: int, buffer: int, penalty: float) -> float:
    """Compute DAPO's soft overlong punishment (arXiv 2503.14476, equation 13), times `penalty`.

    The result is 0 up to `max_tokens - buffer` tokens, and from there linear to `-penalty` at `max_tokens`.

    >>> [soft_overlong(tokens, max_tokens=20, buffer=4, penalty=1.0) for tokens in (16, 17, 20, 21)]
    [0.0, -0.25, -1.0, -1.0]
    """
    return 0.0 - penalty * min(max(tokens - (max_tokens - buffer), 0) / buffer, 1.0)


def math_answers(completions: list[str], **columns: list[Any]) -> list[float | None]:
    """Return 1 if math-verify finds the completion equal to the expected answer, else 0; None without an answer.

    The expected answer is in the column `answer`, or else `solution`. math-verify limits its time by SIGALRM. A loaded
    machine then gives other rewards, and outside of the main thread math-verify 0.6 and 0.7 find every answer wrong
    (REW001). Without a limit `9**9**9**9` takes forever. So the limit of math-verify is off, and processor time is
    limited here, which does not depend on the load of the machine.

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


BUILT_IN: dict[str, Callable[..., Any]] = {
    "exact": exact,
    "letters_in_place": letters_in_place,
    "math": math_answers,
}


def load_functions(specs: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """Load the configured functions, by name.

    Raises:
        ConfigError: A function does not exist or is named twice, or none is named.
    """
    functions: dict[str, Callable[..., Any]] = {}
    for spec in specs:
        name = Path(spec).name
        if name in functions:
            raise ConfigError(f"reward.functions: {name!r} is named twice")
        functions[name] = _load_function(spec)
    if not functions:
        raise ConfigError("reward.functions: expected one or more, where data.path is set")
    return functions


def _load_function(spec: str) -> Callable[..., Any]:
    """Load `file.py:function`, or a built-in function."""
    if spec == "math" and importlib.util.find_spec("math_verify") is None:
        raise ConfigError("reward.functions: 'math' needs math-verify; pip install 'math-verify>=0.8'")
    file, colon, name = spec.rpartition(":")
    try:
        defined = _run_file(Path(file).resolve()) if colon else BUILT_IN
    except (Exception, SystemExit) as error:
        wrong = f"{type(error).__name__}: {error}"
        raise ConfigError(f"reward.functions: {spec!r}: running {file} raised {wrong}") from error
    if not callable(defined.get(name)):
        known = ", ".join(key for key, value in defined.items() if inspect.isfunction(value)) or "none"
        where = file if colon else "what is built in (others are written file.py:function)"
        raise ConfigError(f"reward.functions: {spec!r}: no function {name!r} in {where}; there are: {known}")
    return defined[name]


@functools.lru_cache
def _run_file(path: Path) -> dict[str, Any]:
    """Return the globals of a file; it runs once, with its path as its module name, which is unique."""
    return runpy.run_path(str(path), run_name=str(path))
