"""HNG004: a rank is stopped; its sockets stay open, and the other waits for it in a collective."""

from __future__ import annotations

import os
import signal
import time

from repro.drivers import hangs, standing

NAMES = ("rank 0", "rank 1")


def stopped(mitigation: str) -> None:
    """Rank 1 gets SIGSTOP before the collective."""

    def rank_of(rank: int, port: int) -> None:
        import torch
        import torch.distributed as dist

        hangs.join_gloo(rank, port, len(NAMES))
        dist.barrier()
        standing.say("ready", NAMES[rank])
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(torch.ones(1))
        standing.say("done", NAMES[rank])
        dist.barrier()

    _, second = children = hangs.fork_ranks(len(NAMES), rank_of)
    os.waitpid(second, os.WUNTRACED)
    if mitigation == "continue_it":
        time.sleep(1.0)
        os.kill(second, signal.SIGCONT)
    os.waitpid(children[0], 0)


PROGRAMS = {"stopped": stopped}

REPRO = hangs.repro(
    "HNG004",
    "A process of the job is stopped",
    programs=PROGRAMS,
    names=NAMES,
    counted="ranks came through",
    helps={"continue_it": "kill -CONT after a second"},
    needs=("torch",),
    simulated=("the trainer: ranks of ours; the second stops itself",),
)

if __name__ == "__main__":
    standing.main(PROGRAMS)
