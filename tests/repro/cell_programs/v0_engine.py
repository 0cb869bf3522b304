"""Inside a cell, run valid work on the driven scheduler, and every trigger twenty times in one process.

Prints one JSON document. The assertions are in tests/repro/test_schedulers_in_cells.py, outside.
"""

from __future__ import annotations

import json
import os
import sys

from repro import judge
from repro.drivers.schedulers import callers
from repro.drivers.schedulers.v0 import SchedulerRequest, Setup, V0Engine
from repro.issues import REPROS

RUNS = 20


def lawful(setup: Setup) -> dict[str, object]:
    """Serve a dozen requests of several lengths, some more than fit at once."""
    engine = V0Engine(setup)
    requests = [
        SchedulerRequest(f"r{index}", prompt=3 + 4 * index, max_tokens=2 + index % 7) for index in range(12)
    ]
    [received] = callers.take_turns([callers.generate(engine, requests)])
    return {
        "due": {request.id: request.max_tokens for request in requests},
        "received": sorted([done.id, done.tokens] for done in received),
        "leaked": engine.leaked_blocks(),
        "parked": engine.parked(),
        "preemptions": engine.scheduler.num_cumulative_preemption,
    }


def main() -> None:
    """Run both and print the results."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    observed = {
        f"chunked={chunked} async={async_output} blocks={blocks}": lawful(
            Setup(chunked=chunked, async_output=async_output, blocks=blocks)
        )
        for chunked in (False, True)
        for async_output in (False, True)
        for blocks in (64, 7)
    }
    runs = {
        f"{code} {trigger.name}": sorted(
            {
                (result.outcome.value, result.where or "", result.detail)
                for result in (judge.attempt(repro, trigger.name, None) for _ in range(RUNS))
            }
        )
        for code in ("SCH001", "SCH002")  # the others start separate processes: `python -m repro repeat`
        for repro in [REPROS[code]]
        for trigger in repro.triggers
    }
    json.dump({"lawful": observed, "runs": runs}, answers)
    answers.close()


if __name__ == "__main__":
    sys.exit(main())
