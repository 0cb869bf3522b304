"""Extras: what the three modes do without, found by name and imported when a setting asks for it.

Nothing else names their modules, so a program loads those that it asks for and no others.
"""

from __future__ import annotations

import importlib
from typing import Any

MODULES = {
    # The engine behind a server of somebody else: `connect`.
    "vllm": "rollout.vllm_serve.engine",
    # Ways for weights: `open_sender` and `open_receiver`.
    "gloo": "rollout.weights.group",
    "nccl": "rollout.weights.group",
    "files": "rollout.weights.files",
    # What else is written of a run: `StepRecorder`, `build_loggers`, `Watchdog`.
    "recorder": "records.recording",
    "loggers": "show.loggers",
    "watchdog": "show.watchdog",
}


def extra(name: str) -> Any:
    """The module of one of `MODULES`.

    >>> extra("files").__name__
    'grpo_core.rollout.weights.files'
    """
    return importlib.import_module(f"{__package__}.{MODULES[name]}")
