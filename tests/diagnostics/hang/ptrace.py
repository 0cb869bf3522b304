"""Whether a reader of stacks may look into what a test has started: both are the test's children."""

from __future__ import annotations

import subprocess
import sys

from diagnostics.hang.collect import stacks


def why_blind() -> str:
    """What is missing; empty where nothing is. Tried out: Yama's scope 1 lets a parent look, and no sibling."""
    if stacks.find_tool() is None:
        return "needs py-spy"
    with subprocess.Popen(["sleep", "500"]) as sleeper:
        look = f"open('/proc/{sleeper.pid}/mem', 'rb').close()"
        done = subprocess.run([sys.executable, "-S", "-c", look], capture_output=True, check=False)
        sleeper.kill()
    return "one child may not look into another here: kernel.yama.ptrace_scope" if done.returncode else ""


BLIND = why_blind()
