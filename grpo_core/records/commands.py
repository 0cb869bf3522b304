"""The commands that look at what was written down: `replay` at our own records, `check` at other trainers' dumps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_core.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


def replay_command(arguments: list[str], flags: set[str], answer: Callable[[str], None]) -> int:
    """`replay RUN STEP [--policy PATH] [--section.key VALUE ...]`; other settings are expected to differ."""
    from grpo_core.records.replay import replay

    if len(arguments) < 2 or not arguments[1].isdecimal():
        raise ConfigError(
            "command line: expected replay RUN STEP, a run's folder and a step that it recorded"
        )
    rest, policy = arguments[2:], None
    if "--policy" in rest:
        place = rest.index("--policy")
        policy = Path(rest[place + 1]) if place + 1 < len(rest) else None
        del rest[place : place + 2]
    document = replay(Path(arguments[0]), int(arguments[1]), policy, rest)
    _show(document, flags, answer)
    return 0 if rest or document["outcome"] == "equal" else 1


def _show(document: dict[str, Any], flags: set[str], answer: Callable[[str], None]) -> None:
    text = json.dumps(document) if "--json" in flags else "\n".join(f"{k}: {v}" for k, v in document.items())
    answer(text)
