"""Define the built-in reward functions and the soft overlong penalty, and load the user's functions.

`load_functions` returns the configured functions by name. Loading a user's function runs its Python file, once per
process.
"""

from __future__ import annotations

import functools
import inspect
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grpo_core.config import ConfigError


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


BUILT_IN: dict[str, Callable[..., Any]] = {"exact": exact, "letters_in_place": letters_in_place}


def load_functions(specs: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """Load the configured functions, by name.

    Raises:
        ConfigError: A function does not exist or is named twice, its file raises an error, or none is named.
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
    file, colon, name = spec.rpartition(":")
    try:
        path = str(Path(file).resolve())  # also the module's name, which is unique
        defined = _run_file(path, run_name=path) if colon else BUILT_IN
    except (Exception, SystemExit) as error:
        wrong = f"{type(error).__name__}: {error}"
        raise ConfigError(f"reward.functions: {spec!r}: running {file} raised {wrong}") from error
    if not callable(defined.get(name)):
        known = ", ".join(key for key, value in defined.items() if inspect.isfunction(value)) or "none"
        where = file if colon else "what is built in (others are written file.py:function)"
        raise ConfigError(f"reward.functions: {spec!r}: no function {name!r} in {where}; there are: {known}")
    return defined[name]


_run_file = functools.lru_cache(runpy.run_path)  # a file runs once
