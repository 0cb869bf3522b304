"""`hang --watch -- COMMAND`: runs a command, and looks when nothing of it has moved for a while.

Moving is output, processor time, or bytes read and written, of any process of the command. It is asked a few times a
minute from outside, by counters of the kernel: nothing is put into the job.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diagnostics.hang.look import find, proc
from diagnostics.output.findings import FINDINGS, FINE, USAGE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from typing import BinaryIO

    from diagnostics.hang.snapshot import Snapshot

    Answer = Callable[[Snapshot, argparse.Namespace], int]

# Less processor time than this share of the time between two looks is a thread that only looks again.
STILL = 0.02
GRACE_S = 10.0


@dataclass
class Motion:
    """What a command's processes have done so far."""

    ran_ns: int = 0
    bytes: int = 0
    output: int = 0


@dataclass
class Stall:
    """When something last moved; pure, the clock is given.

    Attributes:
        since: The time from which on nothing has moved.
    """

    since: float
    last: Motion
    asked: float

    def moved(self, now: float, seen: Motion) -> bool:
        """Takes in what was counted at a time; whether anything moved since the last."""
        passed = max(now - self.asked, 1e-6)
        ran = seen.ran_ns - self.last.ran_ns
        anything = (
            seen.output != self.last.output
            # Who came or went changes the sums both ways.
            or ran < 0
            or ran / 1e9 > STILL * passed
            or abs(seen.bytes - self.last.bytes) > 1024 * passed
        )
        self.last, self.asked = seen, now
        if anything:
            self.since = now
        return anything


def run(words: Sequence[str], options: argparse.Namespace, answer: Answer) -> int:
    """Runs the command; its exit code, or 1 where it hung and was ended. `answer` judges and shows what was seen."""
    try:
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        print(f"diagnostics: hang: --watch: {words[0]}: {error.strerror or error}", file=sys.stderr)
        return USAGE
    assert process.stdout
    counted = [0]
    passing = threading.Thread(target=_pass_on, args=(process.stdout, counted), daemon=True)
    passing.start()
    forward = _forwarding(process)
    try:
        ended = _watch(process, options, counted, answer)
    finally:
        for number, before in forward.items():
            signal.signal(number, before)
    passing.join(timeout=2.0)
    if not passing.is_alive():
        process.stdout.close()
    return FINDINGS if ended else _code(process.wait())


def _watch(
    process: subprocess.Popen[bytes], options: argparse.Namespace, counted: list[int], answer: Answer
) -> bool:
    """Waits for its end; whether it hung and was ended here."""
    stall = Stall(time.monotonic(), Motion(), time.monotonic())
    due = options.stall
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(0.2, min(options.stall / 4, 15.0)))
            return False
        now = time.monotonic()
        if stall.moved(now, _count(process.pid, counted[0])):
            due = options.stall
        elif now - stall.since >= due:
            hangs = _look(process.pid, options, now - stall.since, answer)
            if hangs and options.end:
                _end(process)
                return True
            # What could not be told yet may be when it has stood there twice as long.
            due = math.inf if hangs else 2 * (now - stall.since)


def beats(options: argparse.Namespace, answer: Answer) -> int:
    """Looks at a process whenever none of its signs of life came for a while: lines on our standard input.

    A line that is not empty says what begins now, and an empty one that something ended: then none is waited for.
    Ends with its input; 0, whatever was seen.
    """
    (pid,) = options.pid
    live = selectors.DefaultSelector()
    live.register(0, selectors.EVENT_READ)
    doing, since, told = "", time.monotonic(), True
    while True:
        left = options.stall - (time.monotonic() - since)
        if live.select(timeout=None if told else max(0.0, left)):
            piece = os.read(0, 65536)
            if not piece:
                return FINE
            *_, last = piece.decode("utf-8", errors="replace").removesuffix("\n").split("\n")
            doing, since, told = last.strip(), time.monotonic(), not last.strip()
        elif not told and time.monotonic() - since >= options.stall:
            told = True
            print(f"hang: {doing}: no sign of life", file=sys.stderr)
            _look(pid, options, time.monotonic() - since, answer)
            sys.stderr.flush()


def _count(pid: int, output: int) -> Motion:
    below = find.below(find.table(), [pid])
    ran = sum(proc.runnable_ns(p, t) or 0 for p in below for t in proc.threads(p))
    return Motion(ran, sum(proc.moved(p) or 0 for p in below), output)


def _look(pid: int, options: argparse.Namespace, still_s: float, answer: Answer) -> bool:
    from diagnostics.hang.look.take import NoProcessError, Wanted, take

    try:
        snapshot = take(Wanted((pid,), seconds=options.seconds, samples=options.samples))
    except NoProcessError:
        return False
    print(f"hang: nothing has moved for {still_s:.0f} s", file=sys.stderr)
    # What stood still that long needs no further patience.
    options.patience = min(options.patience, still_s)
    sys.stdout.flush()
    with contextlib.redirect_stdout(sys.stderr):
        return answer(snapshot, options) == FINDINGS


def _pass_on(source: BinaryIO, counted: list[int]) -> None:
    while piece := os.read(source.fileno(), 65536):
        counted[0] += len(piece)
        with contextlib.suppress(OSError):
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()


def _forwarding(process: subprocess.Popen[bytes]) -> dict[int, Callable[..., object] | int | None]:
    """Passes on to the command what would end us; the handlers that were there before."""

    def give(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)

    if threading.current_thread() is not threading.main_thread():
        return {}
    return {int(number): signal.signal(number, give) for number in (signal.SIGINT, signal.SIGTERM)}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what was started here, and nothing else."""
    for number in (signal.SIGCONT, signal.SIGTERM):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _code(code: int) -> int:
    return code if code >= 0 else 128 - code
