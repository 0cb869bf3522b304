"""HNG012: nobody reads what a process writes: a parent waits for its child's end, the child for room in a pipe."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from repro.drivers import hangs, standing

NAMES = ("the parent",)
# More than a pipe holds.
MANY = 1_000_000
_PROGRAM = f"import sys; sys.stdout.write('x' * {MANY})"


def wait_before_read(mitigation: str) -> None:
    """A child's output goes to a pipe; its parent calls wait() first."""
    standing.say("guilty", *NAMES)
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE) as process:
        standing.say("guilty", "the child", process.pid)
        standing.say("ready", *NAMES)
        if mitigation == "read_first":
            process.communicate()
        else:
            process.wait()
    standing.say("done", *NAMES)


def join_before_get(mitigation: str) -> None:
    """A worker puts its rollouts in a queue of multiprocessing; the parent joins it before it has taken them."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    rollouts: Any = context.Queue()
    worker = context.Process(target=rollouts.put, args=("x" * MANY,))
    worker.start()
    standing.say("guilty", *NAMES)
    standing.say("guilty", "the worker", worker.pid)
    standing.say("ready", *NAMES)
    if mitigation == "read_first":
        rollouts.get()
    worker.join()
    standing.say("done", *NAMES)


TRIGGERS = {
    "wait_before_read": hangs.Standing(wait_before_read, NAMES),
    "join_before_get": hangs.Standing(join_before_get, NAMES),
}
REPRO = hangs.repro(
    "HNG012",
    "Nobody reads what a process writes",
    triggers=TRIGGERS,
    counted="parents went on",
    helps={"read_first": "read while waiting, or before"},
    simulated=("the trainer and what it starts: two programs of ours",),
)

if __name__ == "__main__":
    hangs.main(TRIGGERS)
