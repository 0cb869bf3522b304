"""Reproduce failures of unmodified PyTorch on a machine without a GPU: gloo groups, torchrun, CPU build, memory.

Groups: CFG109 (port in use), NET011 (missing rank), NET014 (late rank), NET021 (ended rank). torchrun: ENG010, ENV009.
CPU build: ENV014. Memory: MEM010.
"""

import os
import socket
import tempfile
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

from repro.drivers import hangs, single_call
from repro.registry import InapplicableError

_torch_repro = partial(single_call.repro, needs=("torch",))
_group_repro = partial(_torch_repro, modules=("torch.distributed",))
_launch_repro = partial(_torch_repro, modules=("torch.distributed.run",), raises="ChildFailedError: FAILED")
_RANKS = ("the trainer: two forked ranks, over gloo in place of NCCL",)


@_group_repro("CFG109", raises="DistNetworkError: EADDRINUSE", simulated=("the user of the port: a socket",))
def cfg109_rendezvous(mitigation: str | None) -> None:
    """Create a process group at a port that another socket has bound."""
    import torch.distributed as dist

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = hangs.free_port() if mitigation == "own_ports" else listener.getsockname()[1]
        hangs.join_gloo(0, port, 1)
        dist.destroy_process_group()


def _launch(program: str) -> None:
    """Run a program as the only rank of torchrun's launcher."""
    from torch.distributed.run import main

    path = Path(tempfile.mkdtemp(), "rank.py")
    path.write_text(program)
    main(["--standalone", "--nproc_per_node", "1", str(path)])


@_launch_repro("ENG010", simulated=("the rank: a one-line program",))
def eng010_exit_code(_mitigation: str | None) -> None:
    """Launch a rank that fails: torchrun raises ChildFailedError, which does not have the rank's error."""
    _launch("raise SystemExit(3)")


@_launch_repro("ENV009", simulated=("the killer: the rank, a one-line program, sends itself the signal",))
def env009_sigkill(_mitigation: str | None) -> None:
    """Launch a rank that gets SIGKILL: torchrun reports the signal, and there is no traceback."""
    _launch("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")


@_torch_repro("ENV014", raises="AssertionError: Torch not compiled with CUDA enabled")
def env014_cuda(_mitigation: str | None) -> None:
    """Move a module to the GPU with PyTorch's CPU build."""
    import torch

    if torch.version.cuda:
        raise InapplicableError(f"PyTorch {torch.__version__} here is built with CUDA")
    torch.nn.Linear(2, 2).cuda()


@_torch_repro("MEM010", raises="RuntimeError: can't allocate memory")
def mem010_table(mitigation: str | None) -> None:
    """Allocate a table on the host for a context length that makes it 40 TB."""
    import torch

    torch.nn.Embedding(1000 if mitigation == "shorter" else 10_000_000_000, 1000)


@_group_repro("NET011", raises="DistStoreError: waiting for clients")
def net011_alone(_mitigation: str | None) -> None:
    """Create a process group of two ranks in its only process, with a limit of 2 s."""
    hangs.join_gloo(0, hangs.free_port(), 2, timeout=timedelta(seconds=2))


@_group_repro("NET014", raises="RuntimeError: Timed out waiting", simulated=_RANKS)
def net014_late(mitigation: str | None) -> None:
    """Make one rank late for an all_reduce, so that the other reaches its time limit."""
    import torch
    import torch.distributed as dist

    limit = timedelta(seconds=60 if mitigation == "longer" else 2)
    port = hangs.free_port()
    late = os.fork()
    hangs.join_gloo(0 if late else 1, port, 2, timeout=limit)
    if not late:
        time.sleep(6.0)  # as long as an evaluation
    dist.all_reduce(torch.ones(1))
    if not late:
        os._exit(0)


@_group_repro("NET021", raises="RuntimeError: Connection closed by peer", simulated=_RANKS)
def net021_ended(_mitigation: str | None) -> None:
    """End one rank before an all_reduce, so that the other rank's connection is closed."""
    import torch
    import torch.distributed as dist

    port = hangs.free_port()
    child = os.fork()
    hangs.join_gloo(0 if child else 1, port, 2)
    dist.barrier()
    if not child:
        os._exit(1)
    os.waitpid(child, 0)
    dist.all_reduce(torch.ones(1))
