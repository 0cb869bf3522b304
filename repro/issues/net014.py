"""NET014: a rank is late for a collective, and the one that waits for it runs out of time."""

from __future__ import annotations

import os
import time
from datetime import timedelta

from repro.drivers import calls, hangs


def _reduce(mitigation: str | None) -> None:
    import torch
    import torch.distributed as dist

    limit = timedelta(seconds=60 if mitigation == "longer" else 2)

    port = hangs.free_port()
    late = os.fork()
    if late == 0:
        hangs.join_gloo(1, port, 2, timeout=limit)
        time.sleep(6.0)  # a long evaluation
        dist.all_reduce(torch.ones(1))
        os._exit(0)
    hangs.join_gloo(0, port, 2, timeout=limit)
    dist.all_reduce(torch.ones(1))


REPRO = calls.repro(
    "NET014",
    "A collective ran out of time: some rank did not come",
    needs=("torch",),
    modules=("torch.distributed",),
    trigger=("late", "all_reduce over gloo with a limit of 2 s; the other rank comes after 6 s"),
    call=_reduce,
    failure=("RuntimeError", "work.wait()", "all_reduce"),
    says="Timed out waiting",
    helps={"longer": "a limit of 60 s"},
    untried={"find_the_missing": calls.SEARCHES},
    simulated=("the trainer: two ranks of ours, over gloo in place of NCCL",),
)
