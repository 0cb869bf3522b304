"""HNG001: ranks are in different collectives, since a branch that only some of them take has one in it.

Real ranks over gloo, in processes of their own. What they do is what a trainer's step does around its rewards.
"""

from __future__ import annotations

import os
import socket

from repro.drivers import hangs, standing

RANKS = 3
NAMES = tuple(f"rank {rank}" for rank in range(RANKS))
_PORT = "GRPO_DOCTOR_PORT"


def gather_on_main(mitigation: str) -> None:
    """The main rank alone gathers, to log; the others go on to the barrier."""
    _ranks(lambda rank: rank == 0, mitigation)


def gather_skipped(mitigation: str) -> None:
    """A rank without completions leaves the gather out."""
    _ranks(lambda rank: rank != 1, mitigation)


def _ranks(wants: object, mitigation: str) -> None:
    import torch
    import torch.distributed as dist

    assert callable(wants)
    with socket.create_server(("127.0.0.1", 0)) as free:
        os.environ[_PORT] = str(free.getsockname()[1])
    rank = next((rank for rank in range(RANKS) if not os.fork()), None)
    if rank is None:
        for _ in range(RANKS):
            os.wait()
        return
    address = f"tcp://127.0.0.1:{os.environ[_PORT]}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
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
    os._exit(0)


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
