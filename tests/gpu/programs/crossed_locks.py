"""Deadlock two threads that take two locks in opposite order while using a device: `crossed_locks.py cpu|cuda`."""

import os
import sys
import threading

import torch


def main(device: str) -> None:
    """Print `culprit PID`, then deadlock."""
    first_lock, second_lock, met = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def lock_both(first, second) -> None:
        weights = torch.ones(256, 256, device=device)
        with first:
            met.wait()
            assert float((weights @ weights).sum()) > 0
            with second:
                raise AssertionError

    threading.Thread(target=lock_both, args=(first_lock, second_lock), name="updater").start()
    os.write(1, f"culprit {os.getpid()}\n".encode())
    lock_both(second_lock, first_lock)


if __name__ == "__main__":
    main(sys.argv[1])
