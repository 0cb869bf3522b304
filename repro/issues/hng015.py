"""HNG015: two ranks wait at the rendezvous, for the world size says three."""

from __future__ import annotations

from repro.drivers import hangs, standing

NAMES = ("rank 0", "rank 1")


def one_too_many(mitigation: str) -> None:
    """WORLD_SIZE is 3, and 2 ranks are started."""
    world = len(NAMES) + (mitigation != "count_them")

    def rank_of(rank: int, port: int) -> None:
        import torch.distributed as dist

        standing.say("ready", NAMES[rank])
        hangs.join_gloo(rank, port, world)
        standing.say("done", NAMES[rank])
        dist.barrier()

    hangs.run_ranks(len(NAMES), rank_of)


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
