"""NET011: one side makes the store of a process group and waits for the other, which never comes."""

from __future__ import annotations

import socket
from datetime import timedelta

from repro.drivers import calls


def _join(mitigation: str | None) -> None:
    del mitigation
    import torch.distributed as dist

    with socket.socket() as spare:
        spare.bind(("127.0.0.1", 0))
        port = spare.getsockname()[1]
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=0,
        world_size=2,
        timeout=timedelta(seconds=2),
    )


REPRO = calls.repro(
    "NET011",
    "A peer did not come to a process group's store",
    needs=("torch",),
    modules=("torch.distributed",),
    trigger=("alone", "init_process_group of a world of 2; the second rank is never started; a limit of 2 s"),
    call=_join,
    failure=("DistStoreError", "return TCPStore(", "_create_c10d_store"),
    says="waiting for clients",
    untried={
        "same_address": "there is no other side here that could have another address",
        "other_side": calls.SEARCHES,
    },
)
