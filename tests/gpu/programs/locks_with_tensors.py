"""Two threads take two locks in opposite order, each with work on a device: `locks_with_tensors.py cpu|cuda`."""

from __future__ import annotations

import os
import sys
import threading

import torch


def main(device: str) -> None:
    """Prints `culprit PID` and stands still."""
    one, other, met = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def take(first, second) -> None:
        weights = torch.ones(256, 256, device=device)
        with first:
            met.wait()
            assert float((weights @ weights).sum()) > 0
            with second:
                raise AssertionError

    threading.Thread(target=take, args=(one, other), name="updater").start()
    os.write(1, f"culprit {os.getpid()}\n".encode())
    take(other, one)


if __name__ == "__main__":
    main(sys.argv[1])
