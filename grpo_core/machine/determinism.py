"""What makes two runs on one machine the same, bit for bit."""

from __future__ import annotations

import ctypes
import os


def settle(threads: int) -> None:
    """Fixes torch's threads and algorithms in this process, or thread: OpenMP counts per thread.

    Sums are split by thread, so another number of threads rounds differently.
    """
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # asked for by torch, where there is a GPU
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(mode=True)
    # It would also fill all new memory with NaN, a tenth of a small step; nothing here reads what it hasn't written.
    torch.utils.deterministic.fill_uninitialized_memory = False
    # glibc gives back what is freed and takes it anew, thousands of pages a step: 256 MiB of pieces of up to 32 stay.
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        _ = mallopt(-3, 2**25), mallopt(-1, 2**28)  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
