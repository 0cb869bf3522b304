"""Build processes, ranks and connections of snapshots, diagnose them, and run real programs for the hang tests.

`NO_PERMISSION` is the reason to skip tests that inspect another process, or empty. To find it, the import starts two
processes if py-spy is installed.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys

from diagnostics.hang.collect import stacks
from diagnostics.hang.diagnosis import diagnose
from diagnostics.hang.snapshot import Process, Snapshot, Socket, StackFrame, Thread

PYTHON = "/usr/lib/python3.11"
C10D = "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
AT_FUTEX = {"syscall": "futex", "futex": "0x1"}
RECEIVES = {"syscall": "recvfrom", "waits_fds": (3,)}
COMPUTES = {"state": "R", "runnable": 0.99, "syscall": "running", "asleep_s": None}
# Frames of the standard library in which threads wait.
WAIT = StackFrame(f"{PYTHON}/threading.py", "wait", 327)
QUEUE_GET = StackFrame(f"{PYTHON}/queue.py", "get", 171)
ACCEPT = StackFrame(f"{PYTHON}/socket.py", "accept", 294)
EVENT_LOOP = (
    StackFrame(f"{PYTHON}/selectors.py", "select", 468),
    StackFrame(f"{PYTHON}/asyncio/base_events.py", "_run_once", 1898),
)


def sleeping(pid, parent, *frames, thread=None, **values):
    """Return a process whose main thread has slept for 400 s in these frames, or has the fields in `thread`."""
    known = {"state": "S", "runnable": 0.0, "asleep_s": 400.0} | (thread or {})
    return Process(pid, parent, threads=(Thread(pid, "MainThread", frames, **known),), state="S", **values)


def with_threads(process, *stacks, name="Thread-1", **values):
    """Return the process with a thread for each stack; they have slept at a futex for 400 s, or have these fields."""
    known = {"state": "S", "runnable": 0.0, "asleep_s": 400.0} | AT_FUTEX | values
    threads = (Thread(tid, name, stack, **known) for tid, stack in enumerate(stacks, 17))
    return dataclasses.replace(process, threads=(*process.threads, *threads))


def connection(
    inode, kind="tcp", *, sent_s=None, received_s=None, bytes_sent=None, bytes_received=None, **values
):
    """Return both ends of a connection, inode and inode + 1; the traffic is given from the first end's side."""
    near, far = ("127.0.0.1:5", "127.0.0.1:8000") if kind == "tcp" else ("", "")
    first = Socket(
        inode, kind, near, far, "ESTABLISHED", peer=inode + 1, sent_s=sent_s, received_s=received_s,
        bytes_sent=bytes_sent, bytes_received=bytes_received, **values,
    )  # fmt: skip
    second = Socket(
        inode + 1, kind, far, near, "ESTABLISHED", peer=inode, sent_s=received_s, received_s=sent_s,
        bytes_sent=bytes_received, bytes_received=bytes_sent, **values,
    )  # fmt: skip
    return first, second


def rank(number, *frames, world=3, thread=None, **values):
    """Return a rank of a distributed job that waits at a futex; all ranks share one rendezvous store."""
    values = {"role": "trainer", "rank": number, "world": world, "job": "127.0.0.1:1"} | values
    thread = AT_FUTEX | (thread or {})
    return sleeping(100 + number, 1, *frames, thread=thread, **values)


def in_all_gather(number, **values):
    """Return a rank that waits in all_gather."""
    return rank(number, StackFrame(C10D, "all_gather", 1), StackFrame("/job/train.py", "step", 10), **values)


def verdict_of(*processes, seconds=65.0, **values):
    """Diagnose a snapshot of these processes; return the verdict."""
    return diagnose(Snapshot(processes, seconds=seconds, **values)).verdict


@contextlib.contextmanager
def running(*command):
    """Start a program, wait for its first line of output, yield it, and kill its process group at the end."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout.readline()
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def reason_to_skip_inspection() -> str:
    """Return why tests cannot inspect another process (no py-spy, no permission), or "".

    Reading memory is tested from a sibling process, because Yama's scope 1 permits only parents.
    """
    if stacks.find_py_spy() is None:
        return "needs py-spy"
    with subprocess.Popen(["sleep", "500"]) as sleeper:
        look = f"open('/proc/{sleeper.pid}/mem', 'rb').close()"
        done = subprocess.run([sys.executable, "-S", "-c", look], capture_output=True, check=False)
        sleeper.kill()
    return "processes may not read each other here: kernel.yama.ptrace_scope" if done.returncode else ""


NO_PERMISSION = reason_to_skip_inspection()
