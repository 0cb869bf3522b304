"""HNG012: nobody reads what a process writes: a parent waits for its child's end, the child for room in a pipe."""

from __future__ import annotations

import subprocess
import sys

from repro.base import Repro, TriedMitigation, Trigger, Work
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


PROGRAMS = {"wait_before_read": wait_before_read}


def _attempt(mitigation: str | None) -> Work:
    return standing.attempt("repro.issues.hng012", "wait_before_read", mitigation, NAMES, "parents went on")


REPRO = Repro(
    code="HNG012",
    title="Nobody reads what a process writes",
    assertion="",
    distributions=(),
    modules=(),
    helpful_modules=(),
    simulated=("the trainer and what it starts: two programs of ours",),
    triggers=(
        Trigger("wait_before_read", "wait() before the child's output is read", _attempt, silent=True),
    ),
    mitigations=(TriedMitigation("read_first", "read while waiting", frozenset(PROGRAMS)),),
    inapplicable=lambda: None,
)

if __name__ == "__main__":
    standing.main(PROGRAMS)
