"""Whether a reader of stacks may look into what a test has started: both are the test's children."""

from __future__ import annotations

import subprocess
import sys

from diagnostics.hang.collect import stacks


def why_blind() -> str:
    """Return the reason why a process cannot read its sibling; empty if it can. Yama's scope 1 permits only parents."""
    if stacks.find_tool() is None:
        return "needs py-spy"
    with subprocess.Popen(["sleep", "500"]) as sleeper:
        look = f"open('/proc/{sleeper.pid}/mem', 'rb').close()"
        done = subprocess.run([sys.executable, "-S", "-c", look], capture_output=True, check=False)
        sleeper.kill()
    return "one child may not look into another here: kernel.yama.ptrace_scope" if done.returncode else ""


BLIND = why_blind()
