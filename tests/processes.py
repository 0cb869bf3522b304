"""Run programs with captured output, wait for a condition, find out whether a process runs, and choose a free port."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def run_text(
    command: Iterable[object], *, check: bool = False, timeout: float = 500, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command, for 500 s at most by default, with its output captured as text."""
    words = list(map(str, command))
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=check, **options)


def run_python(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run this Python with its output captured as text."""
    return run_text([sys.executable, *arguments], **options)


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def is_running(pid: int) -> bool:
    """Return whether a process runs and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], object], timeout_s: float = 500) -> None:
    """Poll until the condition holds; fail after the time limit."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)
