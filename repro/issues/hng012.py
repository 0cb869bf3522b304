"""HNG012: nobody reads what a process writes: a parent waits for its child's end, the child for room in a pipe."""

from __future__ import annotations

import subprocess
import sys

from repro.drivers import hangs, standing

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


PROGRAMS = {"wait_before_read": wait_before_read}
REPRO = hangs.repro(
    "HNG012",
    "Nobody reads what a process writes",
    programs=PROGRAMS,
    names=NAMES,
    counted="parents went on",
    helps={"read_first": "read while waiting"},
    simulated=("the trainer and what it starts: two programs of ours",),
)

if __name__ == "__main__":
    standing.main(PROGRAMS)
