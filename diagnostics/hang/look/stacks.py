"""Stacks of a process by py-spy, without stopping it; each call within a limit, since py-spy itself can hang."""

from __future__ import annotations

import linecache
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics import given
from diagnostics.hang import frames
from diagnostics.hang.look.numbers import numbered
from diagnostics.hang.read import pyspy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from diagnostics.hang.snapshot import StackFrame, Thread

LIMIT_S = 5.0
TRIES = 3
AT_ONCE = 8


def tool() -> str | None:
    """The path of py-spy: beside our interpreter, or on the PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def take(program: str, pids: Iterable[int]) -> dict[int, tuple[Thread, ...] | str]:
    """The stacks of many processes at a time; where there are none, why."""
    wanted = list(pids)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda pid: _dump(program, pid), wanted))
    return dict(zip(wanted, found, strict=True))


def _dump(program: str, pid: int) -> tuple[Thread, ...] | str:
    # A dump of a process that is not stopped for it may find a stack torn: it is asked again.
    problem = ""
    variables = {name: value for name, value in os.environ.items() if name != "RUST_BACKTRACE"}
    for _ in range(TRIES):
        try:
            done = subprocess.run(
                [program, "dump", "--nonblocking", "--json", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=LIMIT_S,
                check=False,
                env=variables,
            )
        except subprocess.TimeoutExpired:
            return f"py-spy gave no answer within {LIMIT_S:g} s"
        except OSError as error:
            return f"py-spy cannot be started: {error.strerror or error}"
        if done.returncode == 0:
            try:
                return numbered(pid, pyspy.threads(given.parsed(done.stdout))[pid])
            except (ValueError, KeyError, TypeError):
                problem = "py-spy's answer could not be read"
                continue
        problem = _why(done.stderr.decode("utf-8", errors="replace"))
        if "rights" in problem or "gone" in problem:
            break
    return problem


def _why(errors: str) -> str:
    """Why py-spy failed, in our words where we know them."""
    lowered = errors.lower()
    if "permission denied" in lowered or "operation not permitted" in lowered:
        return "no rights to read its memory"
    if "no such file" in lowered or "no such process" in lowered:
        return "it is gone"
    if "failed to find python version" in lowered or "failed to find a python" in lowered:
        return "no Python interpreter was found in it"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return f"py-spy: {lines[-1][:160]}" if lines else "py-spy failed and said nothing"


def merged(samples: Sequence[Thread]) -> Thread:
    """One thread out of its samples: the last stack, and how much of it stood still.

    Line numbers move in a loop that only waits again and again: what counts are the functions.
    """
    stacks = [[(f.path, f.function) for f in reversed(sample.frames)] for sample in samples]
    stem = 0
    while all(len(stack) > stem for stack in stacks) and len({tuple(stack[stem]) for stack in stacks}) == 1:
        stem += 1
    same = len({tuple(stack) for stack in stacks}) == 1
    half = sum(bool(sample.active) for sample in samples) * 2 > len(samples)
    return replace(samples[-1], steady=same, stem=stem, samples=len(samples), active=half)


def hinted(pid: int, frames: Sequence[StackFrame]) -> tuple[StackFrame, ...]:
    """The frames, the innermost with the call on its line; the line itself is kept nowhere."""
    return tuple(
        replace(frame, calls=_call(pid, frame)) if place < 1 else frame for place, frame in enumerate(frames)
    )


def _call(pid: int, frame: StackFrame) -> str:
    if not frame.path.startswith("/") or not frame.line:
        return ""
    # Through the process's own root: it may live in another mount namespace.
    for path in (f"/proc/{pid}/root{frame.path}", frame.path):
        lines = _lines(path)
        if 0 < frame.line <= len(lines) and lines[frame.line - 1]:
            return frames.called(lines[frame.line - 1])
    return ""


def _lines(path: str) -> list[str]:
    """A file's lines, read once for all processes that see it by roots of their own."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return []
    key = found.st_dev, found.st_ino, found.st_mtime_ns
    if key not in _READ:
        _READ[key] = linecache.getlines(path)
    return _READ[key]


_READ: dict[tuple[int, int, int], list[str]] = {}
