"""The process that attempts are forked from: it imports what they need, once, and does nothing else with it.

Importing vLLM takes seconds, an attempt milliseconds. Each attempt gets a process and a process group of its own; a
hang, a crash or a poisoned scheduler ends with it. What an attempt starts is gone when it ends, also servers and
clusters with sessions of their own, and so is the temporary folder that is its own. The worker is told what to do by
lines of JSON on standard input and answers by lines of JSON on standard output, one at a time; prints of imported
packages go to standard error.

Usage: python -m repro.worker REGISTRY PARENT CODE...   (REGISTRY: a module with a dict REPROS)
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from repro import judge, processes
from repro.base import Attempt, AttemptOutcome, Repro


def main(arguments: Sequence[str]) -> None:
    """Imports, says how that went, then carries out attempts until standard input ends."""
    registry, parent, *codes = arguments
    processes.die_with(int(parent), signal.SIGTERM)
    processes.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the runner, which ends this process
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    repros: Mapping[str, Repro] = importlib.import_module(registry).REPROS
    print(json.dumps({"problem": import_all([repros[code] for code in codes])}), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        done = isolated(repros[order["code"]], order["trigger"], order["mitigation"], order["limit_s"])
        print(json.dumps(done.to_json()), file=answers, flush=True)


def import_all(repros: Sequence[Repro]) -> str | None:
    """Imports the modules that attempts need; says what went wrong, or None."""
    for name in dict.fromkeys(module for repro in repros for module in repro.modules):
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - some packages exit
            return f"importing {name} failed: {judge.of_the_harness(error)}"
    for name in dict.fromkeys(module for repro in repros for module in repro.helpful_modules):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    return None


def isolated(repro: Repro, trigger: str, mitigation: str | None, limit_s: float) -> Attempt:
    """Carries out one attempt in a process of its own."""
    reading, writing = os.pipe()
    worker = os.getpid()
    folder = tempfile.mkdtemp(prefix="repro-")
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(repro, trigger, mitigation, limit_s, worker=worker, writing=writing, folder=folder)
    os.close(writing)
    with contextlib.suppress(OSError):
        os.setpgid(child, child)  # both do it, whoever comes first
    signal.signal(signal.SIGTERM, lambda *_: _end(child, folder))
    started = time.monotonic()
    line, timed_out = _read_line(reading, started + limit_s)
    processes.kill_group(child)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    processes.kill_descendants()
    shutil.rmtree(folder, ignore_errors=True)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.close(reading)
    if line:
        found: Any = json.loads(line)
        return Attempt.from_json(found)
    empty = Attempt(trigger, mitigation, AttemptOutcome.ERROR, simulated=repro.simulates(trigger))
    empty = replace(empty, seconds=round(time.monotonic() - started, 4))
    if timed_out:
        return replace(empty, outcome=AttemptOutcome.TIMEOUT, detail=f"no answer within {limit_s:g} s")
    return replace(empty, detail=f"its process ended with {processes.how_it_ended(code)}, without an answer")


def _child(
    repro: Repro,
    trigger: str,
    mitigation: str | None,
    limit_s: float,
    *,
    worker: int,
    writing: int,
    folder: str,
) -> None:
    try:
        os.setpgid(0, 0)
        processes.die_with(worker, signal.SIGKILL)
        os.environ["TMPDIR"], tempfile.tempdir = folder, None
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        faulthandler.dump_traceback_later(limit_s * 0.9, exit=False)  # where it hangs, on standard error
        done = judge.attempt(repro, trigger, mitigation)
        os.write(writing, (json.dumps(done.to_json()) + "\n").encode())
    finally:
        # Nothing of the worker's may run here: no exit handlers, no buffers, no loop.
        os._exit(0)


def _read_line(reading: int, deadline: float) -> tuple[bytes, bool]:
    """Returns (the line, False); (b"", True) when time is up, (b"", False) when the other side ended without one."""
    found = b""
    while not found.endswith(b"\n"):
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return b"", True
        part = os.read(reading, 65536)
        if not part:
            return b"", False
        found += part
    return found, False


def _end(child: int, folder: str) -> None:
    processes.kill_group(child)
    processes.kill_descendants()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(143)


if __name__ == "__main__":
    main(sys.argv[1:])
