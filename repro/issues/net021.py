"""NET021: a rank has ended, and the one that meets it in a collective sees a closed connection."""

from __future__ import annotations

import os

from repro.drivers import calls, hangs


def _reduce(mitigation: str | None) -> None:
    del mitigation
    import torch
    import torch.distributed as dist

    def join(rank: int, port: int) -> None:
        hangs.join_gloo(rank, port, 2)
        dist.barrier()

    port = hangs.free_port()
    other = os.fork()
    if other == 0:
        join(1, port)
        os._exit(1)
    join(0, port)
    os.waitpid(other, 0)
    dist.all_reduce(torch.ones(1))


REPRO = calls.repro(
    "NET021",
    "A peer closed its connection: only what was seen of it",
    needs=("torch",),
    modules=("torch.distributed",),
    trigger=("ended", "all_reduce over gloo; the other rank has ended"),
    call=_reduce,
    failure=("RuntimeError", "work.wait()", "all_reduce"),
    says="Connection closed by peer",
    untried={"find_the_root": calls.SEARCHES},
    simulated=("the trainer: two ranks of ours, over gloo in place of NCCL",),
)
