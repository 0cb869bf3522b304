"""HNG002: a rank waits for an HTTP answer that never comes, the other in a collective for it."""

from __future__ import annotations

import http.client
import socket

from repro.drivers import hangs, standing

NAMES = ("rank 0", "rank 1")


def answer_missing(mitigation: str) -> None:
    """Rank 1 asks a reward server that never answers; rank 0 is in all_reduce."""
    silent = socket.create_server(("127.0.0.1", 0))

    def rank_of(rank: int, port: int) -> None:
        import torch
        import torch.distributed as dist

        hangs.join_gloo(rank, port, len(NAMES))
        dist.barrier()
        standing.say("ready", NAMES[rank])
        if rank == 1:
            limit = 2.0 if mitigation == "bound_the_wait" else None
            asked = http.client.HTTPConnection("127.0.0.1", silent.getsockname()[1], timeout=limit)
            try:
                asked.request("GET", "/reward")
                asked.getresponse()
            except TimeoutError:
                pass  # this row has no reward, and the rank is at the collective in time
        dist.all_reduce(torch.ones(1))
        standing.say("done", NAMES[rank])
        dist.barrier()

    hangs.run_ranks(len(NAMES), rank_of)


PROGRAMS = {"answer_missing": answer_missing}

REPRO = hangs.repro(
    "HNG002",
    "A rank is not in the collective that the others wait in",
    programs=PROGRAMS,
    names=NAMES,
    counted="ranks came through",
    helps={"bound_the_wait": "a limit of 2 s for the answer"},
    needs=("torch",),
    simulated=(
        "the trainer and its reward server: ranks of ours, and a socket that takes and never answers",
    ),
)

if __name__ == "__main__":
    standing.main(PROGRAMS)
