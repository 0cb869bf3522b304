"""What an engine's log says of its requests: those it has, and how many tokens it makes for them."""

from __future__ import annotations

import re

from diagnostics.hang.snapshot import OWES, Process, Snapshot

# vLLM's line, every five or ten seconds. Units: tokens a second, requests.
_LINE = re.compile(
    r"Avg prompt throughput: (?P<read>[\d.]+) tokens/s, Avg generation throughput: (?P<made>[\d.]+) tokens/s,"
    r"[^\n]{0,120}?Running: (?P<runs>\d+) reqs,(?: Swapped: \d+ reqs,)? (?:Waiting|Pending): (?P<waits>\d+) reqs"
)
# Lines without a token by which a pause, or one long step, is over.
_OFTEN = 4


def read(text: str) -> Snapshot | None:
    """An engine that owes answers, and makes none; nobody, where it works or rests; None if nothing is said of one."""
    lines = list(_LINE.finditer(text))
    if not lines:
        return None
    last = lines[-_OFTEN:]
    stands = all(float(one["read"]) == float(one["made"]) == 0 for one in last)
    asked = all(int(one["runs"]) + int(one["waits"]) > 0 for one in last)
    owes = len(last) == _OFTEN and stands and asked
    processes = (Process(-1, role=OWES, python=False),) if owes else ()
    return Snapshot(processes, source="an engine's own figures")
