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
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from repro.base import Repro, TriedMitigation, Trigger, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

READY_S = 120.0
STANDS_S = 12.0
_DESCRIPTOR = "GRPO_DOCTOR_SAY"


def say(word: str, name: str) -> None:
    """Tells that a process is `ready` or `done`."""
    os.write(int(os.environ[_DESCRIPTOR]), f"{word} {name}\n".encode())


def main(programs: Mapping[str, tuple[Callable[[str], None], str]]) -> None:
    """Is the main program of a module with such processes: `-m MODULE TRIGGER MITIGATION`."""
    trigger, mitigation = sys.argv[1:]
    programs[trigger][0](mitigation)


def hang(
    programs: Mapping[str, tuple[Callable[[str], None], str]],
    names: Sequence[str],
    *,
    code: str,
    title: str,
    counted: str,
    simulated: str,
    mitigations: Mapping[str, str],
    needs: str = "",
) -> Repro:
    """Returns the repro of a failure that raises nothing: its processes stand.

    Args:
        programs: of the module that calls this, which also calls `main`, by trigger; with the trigger's events.
        names: of the processes.
        code: of the known issue.
        title: one line.
        counted: what those are who come through, as "rewards came back".
        simulated: what is not real in an attempt.
        mitigations: what helps against all of the triggers, with what is changed.
        needs: the distribution without which it can't happen.
    """
    module = next(program for program, _ in programs.values()).__module__
    lacking = f"{needs} is not installed here"
    return Repro(
        code=code,
        title=title,
        distributions=(needs,) if needs else (),
        simulated=(simulated,),
        triggers=tuple(
            Trigger(name, about, partial(_attempt, module, name, names=names, counted=counted), silent=True)
            for name, (_, about) in programs.items()
        ),
        mitigations=tuple(
            TriedMitigation(name, about, frozenset(programs)) for name, about in mitigations.items()
        ),
        inapplicable=lambda: lacking if needs and find_spec(needs.replace("-", "_")) is None else None,
    )


def _attempt(
    module: str, trigger: str, mitigation: str | None, *, names: Sequence[str], counted: str
) -> Work:
    """Runs a module's program, and counts which of its processes came through.

    Raises:
        RuntimeError: not all of them got ready.
    """
    reading, writing = os.pipe()
    command = [sys.executable, "-m", module, trigger, mitigation or ""]
    environment = os.environ | {_DESCRIPTOR: str(writing)}
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
    heard: dict[str, set[str]] = {"ready": set(), "done": set()}
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
            for word, _, name in (line.decode().partition(" ") for line in lines):
                heard[word].add(name)
            if set(names) <= heard["ready"]:
                limit = time.monotonic() + STANDS_S
    return heard["ready"], heard["done"]
