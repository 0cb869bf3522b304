"""HNG015: two ranks wait at the rendezvous, for the world size says three."""

from __future__ import annotations

import os

from repro.drivers import hangs, standing

NAMES = ("rank 0", "rank 1")


def one_too_many(mitigation: str) -> None:
    """WORLD_SIZE is 3, and 2 ranks are started."""
    world = len(NAMES) + (mitigation != "count_them")

    def rank_of(rank: int, port: int) -> None:
        import torch.distributed as dist

        standing.say("ready", NAMES[rank])
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
        standing.say("done", NAMES[rank])
        dist.barrier()

    for child in hangs.fork_ranks(len(NAMES), rank_of):
        os.waitpid(child, 0)


PROGRAMS = {"one_too_many": one_too_many}

REPRO = hangs.repro(
    "HNG015",
    "Ranks wait at the rendezvous for one that does not come",
    programs=PROGRAMS,
    names=NAMES,
    counted="ranks met",
    helps={"count_them": "WORLD_SIZE is the number of ranks that are started"},
    needs=("torch",),
    simulated=("the launcher: two ranks of ours",),
)

if __name__ == "__main__":
    standing.main(PROGRAMS)
