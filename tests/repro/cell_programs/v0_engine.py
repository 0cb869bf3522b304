"""In a cell, run valid work on vLLM's V0 scheduler with the scheduler driver, and print the results as JSON.

The assertions are in tests/repro/test_schedulers_in_cells.py, which runs outside of the cell.
"""

from __future__ import annotations

import json
import os
import sys

from repro.drivers.schedulers import callers
from repro.drivers.schedulers.v0 import SchedulerRequest, Setup, V0Engine


def run_valid_work(setup: Setup) -> dict[str, object]:
    """Serve a dozen requests of several lengths, more than fit at once; return what was expected and what came back."""
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
    """Run each setup and print the results."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    observed = {
        f"chunked={chunked} async={async_output} blocks={blocks}": run_valid_work(
            Setup(chunked=chunked, async_output=async_output, blocks=blocks)
        )
        for chunked in (False, True)
        for async_output in (False, True)
        for blocks in (64, 7)
    }
    json.dump(observed, answers)
    answers.close()


if __name__ == "__main__":
    sys.exit(main())
