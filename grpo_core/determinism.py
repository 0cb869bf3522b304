"""What makes two runs on one machine the same, bit for bit."""

from __future__ import annotations


def settle(threads: int) -> None:
    """Fixes torch's threads and algorithms in this process, or thread: OpenMP counts per thread.

    Sums are split by thread, so another number of threads rounds differently.
    """
    import torch

    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(mode=True)
