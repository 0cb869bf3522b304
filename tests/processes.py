"""Run a program with its output captured as text."""

from __future__ import annotations

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
