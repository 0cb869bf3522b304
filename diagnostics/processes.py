"""Runs a program in its own process group, with a time limit, and leaves nothing of it behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What a program gets to end by itself before its group is killed.
GRACE_S = 5.0
# Standard output is one JSON document; more than this is not one of ours.
MAX_OUTPUT_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Finished:
    """How a program ended."""

    code: int
    """Exit code; negative for a signal."""
    output: str
    """Its standard output."""
    seconds: float
    timed_out: bool


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    environment: Mapping[str, str],
    log: Path,
    timeout_s: float,
    folder: Path,
    given: str | None = None,
    ledger: Path | None = None,
    running: set[subprocess.Popen[Any]] | None = None,
) -> Finished:
    """Runs a program; its standard error goes to `log`, its standard output is returned.

    Args:
        command: program and arguments.
        environment: all its variables; nothing else of ours reaches it.
        log: file for standard error, overwritten.
        timeout_s: seconds after which the whole process group is ended.
        folder: working folder.
        given: text for its standard input.
        ledger: file that remembers the running group, so that the next run can end what a killed one left.
        running: holds the program while it runs, so that whoever waits for several can end them.
    """
    started = time.monotonic()
    output = log.with_suffix(".out")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as errors, output.open("w+b") as answers:
        process = subprocess.Popen(
            [os.fspath(part) for part in command],
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.PIPE if given is not None else subprocess.DEVNULL,
            stdout=answers,
            stderr=errors,
            start_new_session=True,
        )
        if running is not None:
            running.add(process)
        try:
            _note(ledger, process.pid)
            _wait(process, given, timeout_s)
            timed_out = False
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            # Also after a normal end: a program may leave workers behind.
            _end_group(process)
            _forget(ledger)
            if running is not None:
                running.discard(process)
        answers.seek(0)
        text = answers.read(MAX_OUTPUT_BYTES).decode("utf-8", errors="replace")
    output.unlink(missing_ok=True)
    return Finished(process.returncode, text, time.monotonic() - started, timed_out)


def _wait(process: subprocess.Popen[bytes], given: str | None, timeout_s: float) -> None:
    if given is not None:
        process.communicate(given.encode(), timeout=timeout_s)
    process.wait(timeout=timeout_s)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Asks the process group to end, then kills what is left of it."""
    if process.poll() is None:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_S)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _note(ledger: Path | None, pid: int) -> None:
    if ledger is not None:
        ledger.write_text(json.dumps({"group": pid, "started": _start_time(pid)}), encoding="utf-8")


def _forget(ledger: Path | None) -> None:
    if ledger is not None:
        ledger.unlink(missing_ok=True)


def end_left_over(ledger: Path) -> int | None:
    """Ends the process group that a killed run left running; returns its number if there was one.

    The kernel's start time tells it from a stranger that got the same number since.
    """
    try:
        noted = json.loads(ledger.read_text(encoding="utf-8"))
        group, started = int(noted["group"]), noted["started"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    ledger.unlink(missing_ok=True)
    if started is None or _start_time(group) != started:
        return None
    _signal(group, signal.SIGKILL)
    return group


def _start_time(pid: int) -> str | None:
    """Returns when the kernel started the process, in its own unit; None where that can't be read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]


def tail(path: Path, lines: int = 40, width: int = 400) -> str:
    """Returns the last lines of a log, each cut to `width` characters."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 64 * 1024))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(line[:width] for line in text.splitlines()[-lines:])
