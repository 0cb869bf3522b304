"""Implement `hang --watch`: run a command, and call a diagnosis when it makes no progress for a while.

Progress is output, or more than a little processor time or input and output of the command and its descendants. The
kernel's counters are read about every 15 seconds, more often for a short limit; nothing is injected into the job. The
command's standard output and error are both copied to standard output, and signals are forwarded to it. With `end` a
hanging command is ended; nothing else ends it: another process (`output_copier.py`) copies its output, and errors here
are only reported.
"""

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from diagnostics import UserError, process
from diagnostics.cli import report_error
from diagnostics.findings import FINDINGS
from diagnostics.hang.collect import discovery, proc
from diagnostics.hang.snapshot import TRANSFER_RATE

Diagnose = Callable[[int, float], bool]

IDLE_SHARE = 0.02
"""Processor time as a share of the elapsed time; a smaller share is only polling, and is no progress."""


@dataclass
class StallClock:
    """Progress counters of a command's processes, and the time of the last progress; the caller passes the time.

    Attributes:
        last_progress: Time of the last progress, in seconds like all times.
        last_update: Time of the last counters.
        ran_s: Time in which the threads of all processes ran or waited for a processor.
        bytes_moved: Bytes that all processes read and wrote.
        output_bytes: Bytes of output.
    """

    last_progress: float
    last_update: float
    ran_s: float = 0.0
    bytes_moved: int = 0
    output_bytes: int = 0

    def update(self, now: float, ran_s: float, bytes_moved: int, output_bytes: int) -> bool:
        """Store new counters; return whether they show progress."""
        elapsed = max(now - self.last_update, 1e-6)
        progresses = (
            output_bytes != self.output_bytes
            # A process that came or went changes the sums in both directions.
            or ran_s < self.ran_s
            or ran_s - self.ran_s > IDLE_SHARE * elapsed
            or abs(bytes_moved - self.bytes_moved) > TRANSFER_RATE * elapsed
        )
        self.last_update, self.ran_s = now, ran_s
        self.bytes_moved, self.output_bytes = bytes_moved, output_bytes
        if progresses:
            self.last_progress = now
        return progresses


def watch_command(words: Sequence[str], stall_s: float, diagnose: Diagnose, *, end: bool) -> int:
    """Run a command and diagnose each stall, an undecided one again after twice the time.

    Args:
        words: The command.
        stall_s: Seconds without progress after which the command is diagnosed.
        diagnose: Diagnoses a process that has made no progress for some seconds; returns whether it hangs.
        end: Whether to end a command that hangs.

    Returns:
        The command's exit code, 128 plus the number of the signal that ended it, or 1 if it hung and `end` is set.

    Raises:
        UserError: The command cannot be started.
    """
    # Without RANK, which would make it a process of the job.
    environment = {name: value for name, value in os.environ.items() if name.startswith("LD_")}
    copy = [sys.executable, "-I", "-S", str(Path(__file__).with_name("output_copier.py"))]
    copier = process.start(copy, env=environment, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert copier.stdin
    try:
        with copier.stdin as pipe:
            child = process.start(words, stdin=None, stdout=pipe, stderr=subprocess.STDOUT)
    except OSError as error:
        copier.wait()
        raise UserError(f"hang: --watch: {words[0]}: {error.strerror or error}") from None
    with process.forward_signals(child):
        ended = _wait_for_end(child, stall_s, copier, diagnose, or_hang=end)
        if ended:
            process.end_group(child)
        with errors_reported():
            if child.returncode is None:
                print(f"hang: pid {child.pid} could not be ended: it waits in the kernel", file=sys.stderr)
            try:
                copier.wait(timeout=2.0)
            except subprocess.TimeoutExpired:
                print(f"hang: pid {copier.pid} copies the output that still follows", file=sys.stderr)
    code = child.returncode
    return FINDINGS if ended else code if code >= 0 else 128 - code


def _wait_for_end(
    child: subprocess.Popen[bytes],
    stall_s: float,
    copier: subprocess.Popen[bytes],
    diagnose: Diagnose,
    or_hang: bool,
) -> bool:
    """Wait for the command's end, or with `or_hang` for a hang; return whether it was a hang."""
    clock = StallClock(time.monotonic(), time.monotonic())
    due_s = stall_s
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=max(0.2, min(stall_s / 4, 15.0)))
            return False
        with errors_reported():
            pids = discovery.descendants(discovery.process_table(titles=False), [child.pid])
            ran_ns = sum(proc.runnable_ns(pid, tid) or 0 for pid in pids for tid in proc.list_threads(pid))
            bytes_moved = sum(sum(proc.bytes_moved(pid)) for pid in pids)
            output_bytes = proc.bytes_moved(copier.pid)[0]
            now = time.monotonic()
            if clock.update(now, ran_ns / 1e9, bytes_moved, output_bytes):
                due_s = stall_s
            elif (stalled_s := now - clock.last_progress) >= due_s:
                # An undecided wait may be decidable after twice the time.
                due_s = 2 * stalled_s
                if diagnose(child.pid, stalled_s):
                    due_s = math.inf
                    if or_hang:
                        return True


@contextlib.contextmanager
def errors_reported() -> Iterator[None]:
    """Report any error of the body on standard error, if that can be written, and go on: the command does so, too."""
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - a CpuLimitError is no Exception
        with contextlib.suppress(Exception):
            report_error(error)
