"""What answers the model between its turns: a user's function of the ids so far. Nothing else is run."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grpo_core.config import ConfigError

# (ids of the prompt, ids behind it so far) -> ids that follow; none: the conversation is over.
Reply = Callable[[tuple[int, ...], tuple[int, ...]], Sequence[int]]


def environment(spec: str) -> Reply:
    """That of `file.py:function`.

    Raises:
        ConfigError: It is not there.
    """
    where = f"rollout.environment = {spec!r}"
    file, _, name = spec.rpartition(":")
    if not Path(file).is_file():
        raise ConfigError(f"{where}: no such file; expected file.py:function")
    try:
        there = runpy.run_path(str(Path(file).resolve()), run_name=str(Path(file).resolve()))
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where}: running {file} raised {type(error).__name__}: {error}") from error
    reply: Any = there.get(name)
    if not callable(reply):
        raise ConfigError(f"{where}: no function {name!r} in {file}")
    return reply  # type: ignore[no-any-return]
