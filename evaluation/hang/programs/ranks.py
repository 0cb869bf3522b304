"""Run ranks over gloo that hang in a selected way, or stay healthy: `python ranks.py CASE GUILTY WORLD`.

CASE is the name of a function, or `rendezvous`, `rendezvous_missing` or `crossed_groups` (see `rank_main`). Rank GUILTY
of WORLD ranks calls the function, in most cases between two collectives. Each process prints its role (such as
`culprit` or `victim`) and pid. PyTorch is imported once and the ranks are forked.
If the variable RANK is set, the process is that rank alone, as torchrun starts it.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

GUILTY, WORLD = (int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 3 else (0, 2)
LONG = timedelta(hours=2)


def announce(name: str, pid: int | None = None) -> None:
    """Print the role of a process and its pid (default: this process)."""
    os.write(1, f"{name} {pid or os.getpid()}\n".encode())


def gather_rewards() -> None:
    """Gather rewards from all ranks, as a trainer does."""
    mine = torch.ones(4)
    dist.all_gather([torch.zeros(4) for _ in range(WORLD)], mine)


def step(rank: int, guilty) -> None:
    """Run one step: all ranks gather twice, and the guilty rank calls `guilty` in between."""
    gather_rewards()
    if rank == GUILTY:
        announce("culprit")
        guilty()
    announce("victim") if rank != GUILTY else None
    gather_rewards()


def poll() -> None:
    """The rank polls for a file that is never written."""
    while not Path("/nonexistent/STABLE").exists():
        time.sleep(0.05)


def event() -> None:
    """The rank waits for an event that is never set."""
    threading.Event().wait()


def stopped() -> None:
    """The rank is stopped."""
    os.kill(os.getpid(), signal.SIGSTOP)


def killed() -> None:
    """The rank is killed, and its parent does not wait for it."""
    os.kill(os.getpid(), signal.SIGKILL)


def prompt() -> None:
    """The rank prompts for a key."""
    read, _ = os.pipe()
    os.dup2(read, 0)
    sys.stdin = os.fdopen(0)
    input("wandb: Enter your choice: ")


def other_branch() -> None:
    """The rank broadcasts instead of gathering."""
    dist.broadcast(torch.ones(2), src=GUILTY)
    dist.barrier()


def skipped() -> None:
    """The rank skips the gather and waits at the barrier."""
    dist.barrier()


def http() -> None:
    """The rank sends a request to a server that does not answer."""
    import http.client

    listening = socket.create_server(("127.0.0.1", 0))
    connection = http.client.HTTPConnection("127.0.0.1", listening.getsockname()[1])
    if not os.fork():
        announce("server")
        accepted, _ = listening.accept()
        accepted.recv(10)
        threading.Event().wait()
    listening.close()
    connection.request("POST", "/update_weights")
    connection.getresponse()


def file_lock() -> None:
    """The rank waits for a file lock that a stopped process holds."""
    path = Path(tempfile.mkdtemp()) / "jit.lock"
    ready, write_end = os.pipe()
    if not os.fork():
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.write(write_end, b"x")
            announce("holder")
            os.kill(os.getpid(), signal.SIGSTOP)
    os.read(ready, 1)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def two_locks() -> None:
    """Two threads of the rank wait for each other's locks."""
    first_lock, second_lock, met = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def lock_both(first, second) -> None:
        with first:
            met.wait()
            with second:
                raise AssertionError

    threading.Thread(target=lock_both, args=(first_lock, second_lock)).start()
    lock_both(second_lock, first_lock)


def symbols() -> None:
    """The reward function of the rank never returns."""
    import sympy

    sympy.sympify("5**(5**(5**(5**5)))").evalf(10**9)


def expression() -> None:
    """The reward function of the rank matches a regular expression that backtracks for ever."""
    re.match(r"(a|a)*$", "a" * 60 + "b")


def loader() -> None:
    """The rank waits for a worker of its data loader, which is stopped."""

    class Data(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, item: int) -> int:
            announce("worker")
            os.kill(os.getpid(), signal.SIGSTOP)
            return item

    list(torch.utils.data.DataLoader(Data(), num_workers=1))


def child_asks() -> None:
    """The rank started a program that prompts for input."""
    read, _ = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", "input('Proceed? ')"], stdin=read)
    announce("asker", process.pid)
    process.wait()


def full_tensor() -> None:
    """Only this rank gathers a sharded tensor."""
    from torch.distributed.tensor import Shard, distribute_tensor

    distribute_tensor(torch.ones(WORLD, 2), _mesh, [Shard(0)], src_data_rank=None).full_tensor()


def two_threads() -> None:
    """Two threads of the rank run collectives of one group."""
    thread = threading.Thread(
        target=lambda: dist.broadcast(torch.ones(2), src=(GUILTY + 1) % WORLD), name="update_weights"
    )
    thread.start()
    dist.barrier()


def computing() -> None:
    """Healthy: the rank computes."""
    while True:
        torch.rand(300, 300) @ torch.rand(300, 300)


def importing() -> None:
    """Healthy: the rank compiles Python code."""
    while True:
        compile("\n".join(f"x{n} = {n}" for n in range(20000)), "generated.py", "exec")


def steps() -> None:
    """Healthy: all ranks run steps."""
    while True:
        gather_rewards()
        time.sleep(0.2)


def slow_rank() -> None:
    """Healthy: all ranks run steps, and one rank takes longer than the others."""
    while True:
        gather_rewards()
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            torch.rand(200, 200) @ torch.rand(200, 200)


_mesh = None


def rank_main(case: str, rank: int) -> None:
    """Run one rank."""
    global _mesh  # noqa: PLW0603
    if case in ("rendezvous", "rendezvous_missing") and rank == GUILTY:
        if case == "rendezvous_missing":
            return
        announce("culprit")
        event()
    if case.startswith("rendezvous"):
        announce("victim")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, timeout=LONG)
    if case == "full_tensor":
        from torch.distributed.device_mesh import DeviceMesh

        # A separate group, as in trainers that shard. In the default group the call would match the others' gather.
        _mesh = DeviceMesh.from_group(dist.new_group(), "cpu")
    if case == "crossed_groups":
        first_group, second_group = dist.new_group(), dist.new_group()
        announce("culprit")
        first, second = (first_group, second_group) if rank == GUILTY else (second_group, first_group)
        dist.all_reduce(torch.ones(1), group=first)
        dist.all_reduce(torch.ones(1), group=second)
        return
    if case in ("steps", "slow_rank"):
        announce("healthy")
        while rank != GUILTY and case == "slow_rank":
            gather_rewards()
        globals()[case]()
    step(rank, globals()[case])


def main() -> None:
    """Fork all ranks; the parent does not wait for them, so that a rank that dies stays a zombie."""
    case = sys.argv[1]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    if "RANK" in os.environ:
        rank_main(case, int(os.environ["RANK"]))
        return
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    for rank in range(WORLD):
        if not os.fork():
            rank_main(case, rank)
            os._exit(0)
    time.sleep(10_000)


if __name__ == "__main__":
    main()
