"""Extras: what the three modes do without, found by name and imported when a setting asks for it.

Nothing else names their modules, so a program loads those that it asks for and no others.
"""

from __future__ import annotations

import importlib
from typing import Any

MODULES = {
    # What else is written of a run: `StepRecorder`, `build_loggers`, `Watchdog`.
    "recorder": "records.recording",
    "loggers": "show.loggers",
    "watchdog": "show.watchdog",
}


def extra(name: str) -> Any:
    """The module of one of `MODULES`.

    >>> extra("loggers").__name__
    'grpo_core.show.loggers'
    """
    return importlib.import_module(f"{__package__}.{MODULES[name]}")
