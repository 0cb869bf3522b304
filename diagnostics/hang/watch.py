"""Implement `hang --watch`: run a command, and diagnose it when it makes no progress for a while.

Progress is output, processor time, or bytes read and written by any process of the command. The counters
are read from the kernel a few times a minute; nothing is injected into the job.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from diagnostics import UserError, process
from diagnostics.findings import FINDINGS
from diagnostics.hang.collect import discovery, proc

Diagnose = Callable[[int, float], bool]

IDLE_SHARE = 0.02
"""Processor time as a share of the elapsed time; a smaller share is only polling, and is no progress."""


@dataclass
class StallClock:
    """Progress counters of a command's processes, and the time of the last progress; the caller passes the time.

    Attributes:
        since: Time of the last progress.
        checked: Time of the last counters.
        ran_s: Time in which the threads of all processes ran or waited for a processor.
        moved: Bytes that all processes read and wrote.
        output: Bytes of output.
    """

    since: float
    checked: float
    ran_s: float = 0.0
    moved: int = 0
    output: int = 0

    def update(self, now: float, ran_s: float, moved: int, output: int) -> bool:
        """Store new counters; return whether they show progress."""
        elapsed = max(now - self.checked, 1e-6)
        moves = (
            output != self.output
            # A process that came or went changes the sums in both directions.
            or ran_s < self.ran_s
            or ran_s - self.ran_s > IDLE_SHARE * elapsed
            or abs(moved - self.moved) > 1024 * elapsed
        )
        self.checked, self.ran_s, self.moved, self.output = now, ran_s, moved, output
        if moves:
            self.since = now
        return moves


def watch_command(words: Sequence[str], stall_s: float, diagnose: Diagnose, *, end: bool) -> int:
    """Run a command and diagnose each stall; return its exit code, or 1 if the command hung and was ended.

    Args:
        words: The command.
        stall_s: Seconds without progress after which the command is diagnosed.
        diagnose: Diagnoses a process that has made no progress for some seconds; returns whether it hangs.
        end: Whether to end a command that hangs.
    """
    try:
        child = process.start(words, stdin=None, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        raise UserError(f"hang: --watch: {words[0]}: {error.strerror or error}") from None
    assert child.stdout
    counted = [0]
    copier = threading.Thread(target=_copy_output, args=(child.stdout, counted), daemon=True)
    copier.start()
    with process.forward_signals(child):
        ended = _hangs(child, stall_s, counted, diagnose, until_hang=end)
        if ended:
            process.end_group(child)
    copier.join(timeout=2.0)
    if not copier.is_alive():
        child.stdout.close()
    code = child.wait()
    return FINDINGS if ended else code if code >= 0 else 128 - code


def _hangs(
    child: subprocess.Popen[bytes],
    stall_s: float,
    counted: list[int],
    diagnose: Diagnose,
    *,
    until_hang: bool,
) -> bool:
    """Wait for the command's end, or until it hangs; return whether it hangs."""
    clock = StallClock(time.monotonic(), time.monotonic())
    due_s = stall_s
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=max(0.2, min(stall_s / 4, 15.0)))
            return False
        pids = discovery.descendants(discovery.process_table(), [child.pid])
        ran_ns = sum(proc.runnable_ns(pid, tid) or 0 for pid in pids for tid in proc.list_threads(pid))
        moved = sum(proc.bytes_moved(pid) or 0 for pid in pids)
        now = time.monotonic()
        if clock.update(now, ran_ns / 1e9, moved, counted[0]):
            due_s = stall_s
        elif now - clock.since >= due_s:
            hangs = diagnose(child.pid, now - clock.since)
            if hangs and until_hang:
                return True
            # An undecided wait may be decidable after twice the time.
            due_s = math.inf if hangs else 2 * (now - clock.since)


def _copy_output(source: BinaryIO, counted: list[int]) -> None:
    while data := os.read(source.fileno(), 65536):
        counted[0] += len(data)
        with contextlib.suppress(OSError):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
