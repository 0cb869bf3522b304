"""Processor time against this machine's own: a slow core, and a neighbour that shares it, lengthen both."""

from __future__ import annotations

import time


def unit_s() -> float:
    """What a fixed piece of work costs here and now: some 0.1 s of CPU where the limits were set."""
    began = time.process_time()
    for _ in range(4):
        sorted(str(number) for number in range(200_000))
    return time.process_time() - began
