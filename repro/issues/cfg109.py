"""CFG109: the port of the trainers' rendezvous is taken by another socket."""

from __future__ import annotations

import socket

from repro.drivers import calls


def _join(mitigation: str | None) -> None:
    import torch.distributed as dist

    with socket.socket() as other, socket.socket() as spare:
        for each in (other, spare):
            each.bind(("127.0.0.1", 0))
        other.listen()
        port = (spare if mitigation == "own_ports" else other).getsockname()[1]
        spare.close()
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
        dist.destroy_process_group()


REPRO = calls.repro(
    "CFG109",
    "A port is taken: by another process, or twice by the same run",
    needs=("torch",),
    modules=("torch.distributed",),
    trigger=("rendezvous", "init_process_group on a port that another socket listens on"),
    call=_join,
    failure=("DistNetworkError", "return TCPStore(", "_create_c10d_store"),
    says="EADDRINUSE",
    helps={"own_ports": "a port of its own"},
    simulated=("what has the port: a socket of ours",),
)
