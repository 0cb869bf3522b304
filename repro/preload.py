"""Imported once by the process that attempts are forked from, so that each finds upstream's modules in memory.

What cannot be imported is left for the attempt itself to report: this process must live.
"""

from __future__ import annotations

import importlib

from repro.registry import REPROS

for module in dict.fromkeys(module for repro in REPROS.values() for module in repro.modules):
    try:
        importlib.import_module(module)
    except Exception:  # noqa: BLE001 - whatever upstream raises is reported by the attempt that needs it
        break
