"""HNG007: the lock of a file is held by a process that does not go on, or was left by one that is gone.

The real filelock and PyTorch's own baton, as libraries that compile kernels at first use take them.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

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
            standing.say("guilty", "the holder")
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


def baton_left(mitigation: str) -> None:
    """Who compiled a PyTorch extension was killed, and left its lock: the next waits until the file is gone."""
    from torch.utils.file_baton import FileBaton

    folder = tempfile.mkdtemp(prefix="grpo-doctor-")
    compiler = os.fork()
    if not compiler:
        FileBaton(f"{folder}/lock").try_acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(compiler, 0)
    if mitigation == "free_it":
        Path(folder, "lock").unlink()
    place = tempfile.mkdtemp(prefix="grpo-doctor-") if mitigation == "local_cache" else folder
    standing.say("guilty", NAMES[0])  # who left it is no more: it alone stands
    standing.say("ready", NAMES[0])
    baton = FileBaton(f"{place}/lock")
    if not baton.try_acquire():
        baton.wait()
    standing.say("done", NAMES[0])


TRIGGERS = {
    "holder_stopped": hangs.Standing(holder_stopped, NAMES, ("filelock",)),
    "baton_left": hangs.Standing(baton_left, NAMES, ("torch",)),
}
REPRO = hangs.repro(
    "HNG007",
    "The lock of a file is held by a process that does not go on",
    triggers=TRIGGERS,
    counted="processes got the lock",
    helps={
        "free_it": "end the holder, remove what it left",
        "local_cache": "a cache on a local disk of each host",
    },
    simulated=("what the holder does under its lock: it is stopped, or killed",),
)

if __name__ == "__main__":
    hangs.main(TRIGGERS)
