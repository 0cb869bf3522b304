"""Share a tensor with another process, which compares it and writes into it: `share_tensor.py cpu|cuda`."""

from __future__ import annotations

import sys

import torch
from torch import multiprocessing


def receive_tensors(tensors, answers) -> None:
    """Compare the received tensor with its expected values and write into it, in the other process."""
    tensor = tensors.get()
    expected = torch.arange(100_000, dtype=torch.float32)
    answers.put("equal" if torch.equal(tensor.cpu(), expected) else "other bits")
    tensor[0] = 42.0
    if tensor.is_cuda:
        torch.cuda.synchronize()
    answers.put("done")
    tensors.get()  # keeps the memory mapped until the sender has read it


def main(device: str) -> None:
    """Print whether the other process read equal bits, and whether its writes are visible here."""
    context = multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    process = context.Process(target=receive_tensors, args=(tensors, answers))
    process.start()
    tensor = torch.arange(100_000, dtype=torch.float32, device=device)
    tensors.put(tensor)
    print(answers.get())
    answers.get()
    print("written" if tensor[0].item() == 42.0 else "a copy")
    tensors.put(None)
    process.join()


if __name__ == "__main__":
    main(sys.argv[1])
