"""HNG003: two threads of each rank begin collectives of one group, and not in the same order."""

from __future__ import annotations

import threading
import time

from repro.drivers import hangs, standing

NAMES = ("rank 0", "rank 1")


def update_beside_step(mitigation: str) -> None:
    """A thread broadcasts weights beside the step's all_reduce: on one rank it begins first, on the other not."""
    import torch
    import torch.distributed as dist

    def rank_of(rank: int, port: int) -> None:
        hangs.join_gloo(rank, port, len(NAMES))
        own = dist.new_group() if mitigation == "own_group" else None
        dist.barrier()
        standing.say("guilty", NAMES[rank])
        standing.say("ready", NAMES[rank])
        update = threading.Timer(
            # Which of the two begins first is chance in a job; here the guilty rank's update does.
            0.0 if rank == hangs.guilty_of(0) else 1.0,
            lambda: dist.broadcast(torch.ones(2), src=0, group=own),
        )
        if mitigation != "one_thread":
            update.start()
        time.sleep(0.5)
        dist.all_reduce(torch.ones(1))
        if mitigation == "one_thread":
            update.start()
        update.join()
        standing.say("done", NAMES[rank])
        dist.barrier()

    hangs.run_ranks(len(NAMES), rank_of)


TRIGGERS = {"update_beside_step": hangs.Standing(update_beside_step, NAMES)}
REPRO = hangs.repro(
    "HNG003",
    "Two threads of a rank use one communicator",
    triggers=TRIGGERS,
    counted="ranks came through",
    helps={"own_group": "a group of its own for the update", "one_thread": "the update after the step"},
    needs=("torch",),
    simulated=("the trainer: ranks of ours; which thread begins first is set, not left to chance",),
)

if __name__ == "__main__":
    hangs.main(TRIGGERS)
