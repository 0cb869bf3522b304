"""Connectors: extras that the three modes do without, found by name and imported when they are asked for.

Nothing else names their modules. They are named relative to this package, so whoever follows imports, to load less
or to learn what a program rests on, stops here: a program that asks for a connector says so itself.
"""

from __future__ import annotations

import importlib
from typing import Any

MODULES = {
    # Engines behind servers of others: `connect`, which gives the engine.
    "vllm": "vllm_serve.engine",
    "trl": "trl.client",
    # What a client of others says to our server: `add_routes`.
    "trl endpoints": "trl.endpoints",
    # Ways for weights: `open_sender` and `open_receiver`.
    "gloo": "transports.group",
    "nccl": "transports.group",
    "files": "transports.files",
}


def connector(name: str) -> Any:
    """The module of one of `MODULES`.

    >>> connector("files").__name__
    'grpo_core.rollout.connect.transports.files'
    """
    return importlib.import_module(f"{__name__}.{MODULES[name]}")
