"""HNG001: ranks are in different collectives, since a branch that only some of them take has one in it.

Real ranks over gloo, in processes of their own. What they do is what a trainer's step does around its rewards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repro.drivers import hangs, standing

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = 3
NAMES = tuple(f"rank {rank}" for rank in range(RANKS))


def gather_on_main(mitigation: str) -> None:
    """The main rank alone gathers, to log; the others go on to the barrier."""
    _ranks(lambda rank: rank == 0, mitigation)


def gather_skipped(mitigation: str) -> None:
    """A rank without completions leaves the gather out."""
    _ranks(lambda rank: rank != 1, mitigation)


def _ranks(wants: Callable[[int], bool], mitigation: str) -> None:
    import torch
    import torch.distributed as dist

    def rank_of(rank: int, port: int) -> None:
        hangs.join_gloo(rank, port, RANKS)
        dist.barrier()
        standing.say("ready", NAMES[rank])
        mine = torch.full((4,), float(rank))
        if mitigation == "every_rank":
            gathers = True
        elif mitigation == "decide_together":
            flag = torch.tensor(float(wants(rank)))
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)
            gathers = bool(flag)
        else:
            gathers = wants(rank)
        if gathers:
            dist.all_gather([torch.zeros(4) for _ in range(RANKS)], mine)
        dist.barrier()
        standing.say("done", NAMES[rank])
        # A rank that leaves would take the connections of the others with it.
        dist.barrier()

    hangs.run_ranks(RANKS, rank_of)


PROGRAMS = {"gather_on_main": gather_on_main, "gather_skipped": gather_skipped}
REPRO = hangs.repro(
    "HNG001",
    "Ranks are in different collectives",
    programs=PROGRAMS,
    names=NAMES,
    counted="ranks came through the step",
    helps={
        "every_rank": "call the collective on every rank",
        "decide_together": "reduce the condition first",
    },
    needs=("torch",),
    simulated=("the trainer: ranks of ours call the collectives that its step calls",),
)

if __name__ == "__main__":
    standing.main(PROGRAMS)
