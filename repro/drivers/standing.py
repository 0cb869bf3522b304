"""An attempt at a hang: processes that say when they are ready and done, and a limit after the last is ready.

What is not done by then stands. Nothing of an attempt outlives it: its processes are a group of their own.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from repro.base import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

READY_S = 600.0  # a whole engine takes minutes to be up where others compute, too
STANDS_S = 12.0
DESCRIPTOR = "GRPO_DOCTOR_SAY"


def say(word: str, name: str, pid: int | None = None) -> None:
    """Tells that a process is `ready` or `done`; or that it is `guilty`: it holds the others up."""
    os.write(int(os.environ[DESCRIPTOR]), f"{word} {pid or os.getpid()} {name}\n".encode())


def main(programs: Mapping[str, Callable[[str], None]]) -> None:
    """Is the main program of a module with such processes: `-m MODULE TRIGGER MITIGATION`."""
    trigger, mitigation = sys.argv[1:]
    programs[trigger](mitigation)


def attempt(module: str, trigger: str, mitigation: str | None, names: Sequence[str], counted: str) -> Work:
    """Runs a module's program, and counts which of its processes came through.

    Raises:
        RuntimeError: not all of them got ready.
    """
    reading, writing = os.pipe()
    command = [sys.executable, "-m", module, trigger, mitigation or ""]
    environment = os.environ | {DESCRIPTOR: str(writing)}
    process = subprocess.Popen(
        command, env=environment, pass_fds=[writing], stdin=subprocess.DEVNULL, start_new_session=True
    )
    os.close(writing)
    try:
        ready, done = _heard(reading, names)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(reading)
    if not set(names) <= ready | done:
        raise RuntimeError(f"{module}: not ready: {', '.join(sorted(set(names) - ready))}")
    stood = [name for name in names if name not in done]
    note = f"{', '.join(stood)} stood for {STANDS_S:g} s" if stood else ""
    return Work(
        dict.fromkeys(names, None), [(name, 0) for name in names if name in done], note=note, counted=counted
    )


def _heard(reading: int, names: Sequence[str]) -> tuple[set[str], set[str]]:
    """(who was ready, who was done) when all are done, or none has been for long enough."""
    heard: dict[str, set[str]] = {"ready": set(), "done": set(), "guilty": set()}
    limit = time.monotonic() + READY_S
    text = b""
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        while not set(names) <= heard["done"] and selector.select(max(0.0, limit - time.monotonic())):
            piece = os.read(reading, 4096)
            if not piece:
                break
            text += piece
            *lines, text = text.split(b"\n")
            for word, _, name in (line.decode().split(" ", 2) for line in lines):
                heard[word].add(name)
            if set(names) <= heard["ready"]:
                limit = time.monotonic() + STANDS_S
    return heard["ready"], heard["done"]
