"""HNG015: ranks wait at the rendezvous for one that does not come."""

from __future__ import annotations

import contextlib
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from repro.drivers import hangs, standing

RANKS = 3
NAMES = tuple(f"rank {rank}" for rank in range(RANKS))
DRIVER = ("the driver",)


def one_too_many(mitigation: str) -> None:
    """WORLD_SIZE is 3, and 2 ranks are started."""
    missing = hangs.guilty_of(2)
    started = [rank for rank in range(RANKS) if rank != missing]

    def rank_of(rank: int, port: int) -> None:
        import torch.distributed as dist

        standing.say("ready", NAMES[rank])
        if mitigation == "count_them":
            hangs.join_gloo(started.index(rank), port, len(started))
        else:
            hangs.join_gloo(rank, port, RANKS)
        standing.say("done", NAMES[rank])
        dist.barrier()

    standing.say("ready", NAMES[missing])
    standing.say("done", NAMES[missing])  # it is not there: the others stand
    hangs.run_ranks(started, rank_of)


def other_port(mitigation: str) -> None:
    """A rank has another MASTER_PORT than the others, and waits for a store that nobody serves."""
    import torch.distributed as dist

    one, wrong = hangs.guilty_of(1), hangs.free_port()

    def rank_of(rank: int, port: int) -> None:
        if rank == one:
            standing.say("guilty", NAMES[rank])
        standing.say("ready", NAMES[rank])
        hangs.join_gloo(rank, wrong if rank == one and mitigation != "count_them" else port, RANKS)
        standing.say("done", NAMES[rank])
        dist.barrier()

    hangs.run_ranks(RANKS, rank_of)


def constructor_raised(mitigation: str) -> None:
    """Actors of Ray rendezvous in their constructors; one raised before it came to that, and is dead."""
    ray = hangs.start_ray(RANKS)
    port, one = hangs.free_port(), hangs.guilty_of(0)
    came = Path(tempfile.mkdtemp(prefix="grpo-doctor-"))

    class Worker:
        def __init__(self, rank: int) -> None:
            if mitigation != "meet_after":
                import_module("torch.distributed")  # before it says that it came: it takes long
            (came / str(rank)).touch()
            self.rank = rank
            if rank == one:
                raise ValueError(rank)
            if mitigation != "meet_after":
                self.meet()

        def rank_of(self) -> int:
            return self.rank

        def meet(self) -> None:
            hangs.join_gloo(self.rank, port, RANKS)

    workers: list[Any] = [ray.remote(Worker).remote(rank) for rank in range(RANKS)]
    while len(list(came.iterdir())) < RANKS:
        time.sleep(0.2)
    standing.say("ready", *DRIVER)
    # One after the other, as drivers do, and here in the order in which the error comes last.
    others = [worker for rank, worker in enumerate(workers) if rank != one]
    with contextlib.suppress(ray.exceptions.RayActorError):
        ray.get([each.rank_of.remote() for each in others])
        ray.get(workers[one].rank_of.remote())
        ray.get([each.meet.remote() for each in workers])
    standing.say("done", *DRIVER)


TRIGGERS = {
    "one_too_many": hangs.Standing(one_too_many, NAMES, ("torch",)),
    "other_port": hangs.Standing(other_port, NAMES, ("torch",)),
    "constructor_raised": hangs.Standing(
        constructor_raised,
        DRIVER,
        ("torch", "ray"),
        ("driver and workers: programs of ours, in a cluster of Ray's own",),
    ),
}
REPRO = hangs.repro(
    "HNG015",
    "Ranks wait at the rendezvous for one that does not come",
    triggers=TRIGGERS,
    counted="processes met, or were told",
    helps={
        "count_them": "WORLD_SIZE is the number of ranks that are started, MASTER_PORT the same for all",
        "meet_after": "constructors first; the rendezvous when all of them have come through",
    },
    only={"count_them": ("one_too_many", "other_port"), "meet_after": ("constructor_raised",)},
    simulated=("the launcher: ranks of ours",),
)

if __name__ == "__main__":
    hangs.main(TRIGGERS)
