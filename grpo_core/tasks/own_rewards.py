"""The reward functions that settings name: those that come with the trainer, mathematics, and the user's own."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError
from grpo_core.tasks.mathematics import math_answers
from grpo_core.tasks.reward_functions import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Callable

    from grpo_core.config import RewardConfig


def chosen(options: RewardConfig, device: str) -> dict[str, Callable[..., Any]]:
    """Those of the settings by name, the reward model last.

    Raises:
        ConfigError: One is not there, or named twice, or none is named.
    """
    built: dict[str, Callable[..., Any]] = {}
    for spec in options.functions:
        name = Path(spec).name
        if name in built:
            raise ConfigError(f"reward.functions: {name!r} is named twice")
        built[name] = function(spec)
    if options.model:
        from grpo_core.tasks.reward_model import RewardModel

        built["model"] = RewardModel(options.model, device)
    if not built:
        raise ConfigError("reward.functions: expected one or more, or reward.model, where data.path is set")
    return built


def function(spec: str) -> Callable[..., Any]:
    """That of `file.py:function`, or one that is built in.

    Raises:
        ConfigError: It is not there.
    """
    if spec == "math" and importlib.util.find_spec("math_verify") is None:
        raise ConfigError("reward.functions: 'math' needs math-verify; pip install 'math-verify>=0.8'")
    file, colon, name = spec.rpartition(":")
    try:
        there = _run(Path(file).resolve()) if colon else KNOWN
    except (Exception, SystemExit) as error:
        shown = f"{type(error).__name__}: {error}"
        raise ConfigError(f"reward.functions: {spec!r}: running {file} raised {shown}") from error
    if not callable(there.get(name)):
        known = ", ".join(key for key, value in there.items() if inspect.isfunction(value)) or "none"
        where = file if colon else "what is built in (others are written file.py:function)"
        raise ConfigError(f"reward.functions: {spec!r}: no function {name!r} in {where}; there are: {known}")
    return there[name]


@functools.lru_cache
def _run(path: Path) -> dict[str, Any]:
    """What a file defines; run once, under its own path as a name, which no other module has."""
    return runpy.run_path(str(path), run_name=str(path))


KNOWN = dict(sorted({**BUILT_IN, "math": math_answers}.items()))
