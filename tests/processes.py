"""Run a program with its output captured as text, and choose a port for it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterable
from typing import Any


def run_text(
    command: Iterable[object], *, check: bool = False, timeout: float = 500, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command with its output captured as text."""
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
