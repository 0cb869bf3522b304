"""Repros of failures in PyTorch: its launcher, process groups, memory and build."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

from repro.base import InapplicableError
from repro.drivers import calls, hangs

_repro = partial(calls.repro, needs=("torch",), modules=("torch.distributed",))


@_repro(
    "CFG109",
    trigger="rendezvous",
    failure=("DistNetworkError", "return TCPStore(", "_create_c10d_store"),
    says="EADDRINUSE",
    changes={"own_ports": "a port of its own"},
    simulated=("what has the port: a socket of ours",),
)
def cfg109_rendezvous(mitigation: str | None) -> None:
    """The port of the trainers' rendezvous is taken by another socket."""
    import torch.distributed as dist

    with socket.socket() as second, socket.socket() as spare:
        for item in (second, spare):
            item.bind(("127.0.0.1", 0))
        second.listen()
        port = (spare if mitigation == "own_ports" else second).getsockname()[1]
        spare.close()
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
        dist.destroy_process_group()


def launch(program: str) -> None:
    """Run a program of one rank with torchrun's launcher."""
    from torch.distributed.run import main

    path = Path(tempfile.mkdtemp(), "rank.py")
    path.write_text(program)
    main(["--standalone", "--nproc_per_node", "1", str(path)])


@calls.repro(
    "ENG010",
    needs=("torch",),
    modules=("torch.distributed.run",),
    trigger="exit_code",
    failure=("ChildFailedError", "raise ChildFailedError(", "launch_agent"),
    untried={"find_the_root": calls.SEARCHES},
    simulated=("the rank: a program of ours",),
)
def eng010_exit_code(_mitigation: str | None) -> None:
    """Torchrun's launcher ends with ChildFailedError because a rank failed with another error."""
    launch("raise SystemExit(3)")


@calls.repro(
    "ENV009",
    needs=("torch",),
    modules=("torch.distributed.run",),
    trigger="sigkill",
    failure=("ChildFailedError", "raise ChildFailedError(", "launch_agent"),
    untried={"less_host_memory": "nothing here fills the host's memory", "ask": calls.SEARCHES},
    simulated=("who kills: the rank, a program of ours, sends itself the signal",),
)
def env009_sigkill(_mitigation: str | None) -> None:
    """A rank is killed by SIGKILL; torchrun's launcher reports the signal, and there is no traceback."""
    launch("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")


@calls.repro(
    "ENV014",
    needs=("torch",),
    modules=("torch",),
    trigger="cuda",
    failure=("AssertionError", 'raise AssertionError("Torch not compiled with CUDA enabled")', "_lazy_init"),
    untried={"reinstall": "it changes the environment, and needs a GPU to show that it helps"},
)
def env014_cuda(_mitigation: str | None) -> None:
    """Something is to go to the GPU, and PyTorch is the CPU build."""
    import torch

    if torch.version.cuda:
        raise InapplicableError(f"PyTorch {torch.__version__} here is built with CUDA")
    torch.nn.Linear(2, 2).cuda()


# 40 TB, more than the host gives out to anybody.
LONG, SHORT = 10_000_000_000, 1000


@calls.repro(
    "MEM010",
    needs=("torch",),
    modules=("torch",),
    trigger="table",
    failure=("RuntimeError", "torch.empty((num_embeddings, embedding_dim), **factory_kwargs),", "__init__"),
    says="can't allocate memory",
    changes={"shorter": "a table of the length that is needed"},
)
def mem010_table(mitigation: str | None) -> None:
    """A table as long as a made-up context length is allocated on the host at once."""
    import torch

    torch.nn.Embedding(SHORT if mitigation == "shorter" else LONG, 1000)


@_repro(
    "NET011",
    trigger="alone",
    failure=("DistStoreError", "return TCPStore(", "_create_c10d_store"),
    says="waiting for clients",
    untried={
        "same_address": "there is no other side here that could have another address",
        "other_side": calls.SEARCHES,
    },
)
def net011_alone(_mitigation: str | None) -> None:
    """One side makes the store of a process group and waits for the other, which never comes."""
    import torch.distributed as dist

    with socket.socket() as spare:
        spare.bind(("127.0.0.1", 0))
        port = spare.getsockname()[1]
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=2, timeout=timedelta(seconds=2)
    )


@_repro(
    "NET014",
    trigger="late",
    failure=("RuntimeError", "work.wait()", "all_reduce"),
    says="Timed out waiting",
    changes={"longer": "a limit of 60 s"},
    untried={"find_the_missing": calls.SEARCHES},
    simulated=("the trainer: two ranks of ours, over gloo in place of NCCL",),
)
def net014_late(mitigation: str | None) -> None:
    """A rank is late for a collective, and the one that waits for it runs out of time."""
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


@_repro(
    "NET021",
    trigger="ended",
    failure=("RuntimeError", "work.wait()", "all_reduce"),
    says="Connection closed by peer",
    untried={"find_the_root": calls.SEARCHES},
    simulated=("the trainer: two ranks of ours, over gloo in place of NCCL",),
)
def net021_ended(_mitigation: str | None) -> None:
    """A rank has ended, and the one that meets it in a collective sees a closed connection."""
    import torch
    import torch.distributed as dist

    def join(rank: int, port: int) -> None:
        hangs.join_gloo(rank, port, 2)
        dist.barrier()

    port = hangs.free_port()
    second = os.fork()
    if second == 0:
        join(1, port)
        os._exit(1)
    join(0, port)
    os.waitpid(second, 0)
    dist.all_reduce(torch.ones(1))
