"""HNG012: nobody reads what a process writes: a parent waits for its child's end, the child for room in a pipe."""

from __future__ import annotations

import subprocess
import sys

from repro.drivers import standing

NAMES = ("the parent",)
# More than a pipe holds.
_PROGRAM = "import sys; sys.stdout.write('x' * 1_000_000)"


def wait_before_read(mitigation: str) -> None:
    """A child's output goes to a pipe; its parent calls wait() first."""
    standing.say("ready", NAMES[0])
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE) as process:
        if mitigation == "read_first":
            process.communicate()
        else:
            process.wait()
    standing.say("done", NAMES[0])


PROGRAMS = {"wait_before_read": (wait_before_read, "wait() before the child's output is read")}
REPRO = standing.hang(
    PROGRAMS,
    NAMES,
    code="HNG012",
    title="Nobody reads what a process writes",
    counted="parents went on",
    simulated="the trainer and what it starts: two programs of ours",
    mitigations={"read_first": "read while waiting"},
)

if __name__ == "__main__":
    standing.main(PROGRAMS)
