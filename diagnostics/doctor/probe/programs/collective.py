"""Sum a tensor over two processes, to test PyTorch's collectives.

Arguments: backend (`gloo`, `nccl`), path of a file for the rendezvous (so that no port is needed), and rank. Without a
rank, the program is rank 0 and starts rank 1. `probe` does this in rank 0, and `sum_over_ranks` in each rank.
"""

from __future__ import annotations

import datetime
import subprocess
import sys
from typing import Any

import doctor_child  # type: ignore[import-not-found] # beside this file when run

LIMIT = datetime.timedelta(seconds=60)


def sum_over_ranks(backend: str, rendezvous: str, rank: int) -> str:
    """Sum a tensor of ones (rank 0) and of twos (rank 1), check the result, and return the type of device.

    Raises:
        RuntimeError: The sum is wrong.
    """
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend, init_method=f"file://{rendezvous}", rank=rank, world_size=2, timeout=LIMIT
    )
    tensor = torch.full((1024,), float(rank + 1), device=device)
    dist.all_reduce(tensor)
    low, high = tensor.min().item(), tensor.max().item()
    dist.barrier()
    dist.destroy_process_group()
    if (low, high) != (3.0, 3.0):
        raise RuntimeError(f"1 + 2 over two ranks gave values from {low} to {high}")
    return str(device.type)


def probe(answer: dict[str, Any]) -> None:
    """Start rank 1, take part as rank 0, and fill in `device`."""
    backend, rendezvous = sys.argv[1:3]
    peer = subprocess.Popen([sys.executable, sys.argv[0], backend, rendezvous, "1"])
    try:
        answer["device"] = sum_over_ranks(backend, rendezvous, 0)
        if code := peer.wait(timeout=LIMIT.total_seconds()):
            raise RuntimeError(f"rank 1 ended with {code}")
    finally:
        peer.kill()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        sum_over_ranks(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        doctor_child.run(probe)
