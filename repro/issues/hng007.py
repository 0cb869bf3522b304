"""HNG007: the lock of a file is held by a process that does not go on; whoever wants it waits without a limit.

The real filelock, as libraries that compile kernels at first use take it. The holder is stopped, as by a debugger.
"""

from __future__ import annotations

import os
import signal
import tempfile

from repro.drivers import hangs, standing

NAMES = ("the process that wants the lock",)


def holder_stopped(mitigation: str) -> None:
    """The holder is stopped while it compiles."""
    from filelock import FileLock

    folder = tempfile.mkdtemp(prefix="grpo-doctor-")
    taken, tell = os.pipe()
    holder = os.fork()
    if not holder:
        with FileLock(f"{folder}/kernel.lock"):
            os.write(tell, b"x")
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.read(taken, 1)
    if mitigation == "free_it":
        os.kill(holder, signal.SIGKILL)
    standing.say("ready", NAMES[0])
    # A cache of its own has a lock of its own.
    place = tempfile.mkdtemp(prefix="grpo-doctor-") if mitigation == "local_cache" else folder
    with FileLock(f"{place}/kernel.lock"):
        standing.say("done", NAMES[0])


PROGRAMS = {"holder_stopped": holder_stopped}
REPRO = hangs.repro(
    "HNG007",
    "The lock of a file is held by a process that does not go on",
    programs=PROGRAMS,
    names=NAMES,
    counted="processes got the lock",
    helps={"free_it": "end the holder", "local_cache": "a cache on a local disk of each host"},
    needs=("filelock",),
    simulated=("what the holder does under its lock: it is stopped",),
)

if __name__ == "__main__":
    standing.main(PROGRAMS)
