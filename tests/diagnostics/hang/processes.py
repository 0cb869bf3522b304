"""Processes of snapshots for the tests: each sleeps in the given frames."""

from diagnostics.hang.snapshot import Process, StackFrame, Thread

C10D = "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def sleeping(pid, parent, *frames, thread=None, **values):
    """A process whose main thread has slept for 400 s in these frames."""
    known = {"state": "S", "runnable": 0.0, "asleep_s": 400.0} | (thread or {})
    return Process(pid, parent, threads=(Thread(pid, "MainThread", frames, **known),), state="S", **values)


def rank(number, *frames, world=3, thread=None, **values):
    """A rank of a job with one store; it waits at a futex."""
    values = {"role": "trainer", "rank": number, "world": world, "job": "127.0.0.1:1"} | values
    thread = {"syscall": "futex", "futex": "0x1"} | (thread or {})
    return sleeping(100 + number, 1, *frames, thread=thread, **values)


def in_all_gather(number, **values):
    """A rank in all_gather."""
    return rank(number, StackFrame(C10D, "all_gather", 1), StackFrame("/job/train.py", "step", 10), **values)
