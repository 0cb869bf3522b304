"""HNG005: a process died, and who waits for it does not see that."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from datetime import timedelta

from repro.drivers import hangs, standing

TRAINER = ("the trainer",)
RANKS = 3
NAMES = tuple(f"rank {rank}" for rank in range(RANKS))
LIMIT_S = 2.0


def pipe_left_open(mitigation: str) -> None:
    """A worker is killed; its trainer has the worker's end of the pipe open itself, and waits for a message."""
    import multiprocessing

    mine, its = multiprocessing.Pipe()
    worker = os.fork()
    if not worker:
        standing.say("guilty", "the worker")
        os.kill(os.getpid(), signal.SIGKILL)
    if mitigation == "close_ends":
        its.close()
    standing.say("ready", *TRAINER)
    with contextlib.suppress(EOFError):
        if mitigation != "limit" or mine.poll(LIMIT_S):
            mine.recv()
    standing.say("done", *TRAINER)


def lock_of_killed(mitigation: str) -> None:
    """A worker is killed while it holds a lock that processes share; the trainer wants it."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    lock, taken = context.Lock(), context.Event()
    if not os.fork():
        lock.acquire()
        standing.say("guilty", "the worker")
        taken.set()
        os.kill(os.getpid(), signal.SIGKILL)
    taken.wait()
    standing.say("ready", *TRAINER)
    lock.acquire(timeout=LIMIT_S if mitigation == "limit" else None)
    standing.say("done", *TRAINER)


def store_key_of_killed(mitigation: str) -> None:
    """A rank is killed before it has set its key in the TCPStore; the others wait for it."""
    from torch.distributed import DistStoreError, TCPStore

    limit = timedelta(seconds=LIMIT_S) if mitigation == "limit" else timedelta(hours=2)

    def rank_of(rank: int, port: int) -> None:
        one = hangs.guilty_of(1)
        host = (one + 1) % RANKS
        store = TCPStore("127.0.0.1", port, RANKS, rank == host)
        if rank == one:
            standing.say("ready", NAMES[rank])
            standing.say("guilty", NAMES[rank])
            standing.say("done", NAMES[rank])  # it is not the one that stands
            os.kill(os.getpid(), signal.SIGKILL)
        standing.say("ready", NAMES[rank])
        with contextlib.suppress(DistStoreError):
            store.wait([f"rank {one} has its weights"], limit)
        standing.say("done", NAMES[rank])
        time.sleep(1.0 if rank == host else 0.0)

    children = hangs.fork_ranks(RANKS, rank_of)
    # As a launcher that looks at its ranks one after the other.
    for rank in sorted(range(RANKS), key=lambda rank: rank == hangs.guilty_of(1)):
        os.waitpid(children[rank], 0)


TRIGGERS = {
    "pipe_left_open": hangs.Standing(pipe_left_open, TRAINER),
    "lock_of_killed": hangs.Standing(lock_of_killed, TRAINER),
    "store_key_of_killed": hangs.Standing(store_key_of_killed, NAMES, ("torch",)),
}
REPRO = hangs.repro(
    "HNG005",
    "A process died, and who waits for it does not see that",
    triggers=TRIGGERS,
    counted="processes went on",
    helps={
        "close_ends": "the trainer closes the end that is the worker's",
        "limit": "a limit of 2 s on the wait",
    },
    only={"close_ends": ("pipe_left_open",)},
    untried={"find_why": "it looks for the cause and changes nothing"},
    simulated=("trainer and worker: processes of ours; the guilty one kills itself",),
)

if __name__ == "__main__":
    hangs.main(TRIGGERS)
