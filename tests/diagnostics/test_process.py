"""`diagnostics.process` limits the time and output of a program, and ends its descendants, also after an interrupt.

It ends a recorded process group, gives up an unkillable program, and reads the tail of a log.
"""

import os
import signal
import subprocess
import sys

import pytest

from diagnostics import process
from tests.processes import is_running, wait_until

PRINT_AND_SPAWN = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
"""


def test_output_errors_and_code_are_returned():
    code = "import sys; print(sys.stdin.read()); print('e', file=sys.stderr); sys.exit(3)"
    done = process.run([sys.executable, "-c", code], timeout_s=60, stdin="text")
    assert (done.code, done.output, done.errors, done.timed_out) == (3, "text\n", "e\n", False)


@pytest.mark.parametrize(("last", "timeout_s"), [("child.wait()", 3), ("", 60)], ids=["hangs", "ends"])
def test_descendants_of_a_hanging_or_finished_program_are_killed(monkeypatch, last, timeout_s):
    monkeypatch.setattr(process, "GRACE_S", 0.5)
    done = process.run([sys.executable, "-c", PRINT_AND_SPAWN + last], timeout_s=timeout_s)
    assert done.timed_out if last else done.code == 0
    wait_until(lambda: not is_running(int(done.output)))


def test_output_beyond_the_limit_is_dropped():
    """Output beyond the limit is read and dropped, so that the program does not block."""
    done = process.run([sys.executable, "-c", "print('a' * 10_000_000)"], timeout_s=60, max_output=1000)
    assert (done.code, len(done.output)) == (0, 1000)


def test_recorded_process_group_is_killed_once(tmp_path, monkeypatch):
    """A recorded group is killed once; another process with the same id has another start time and is left alone.

    So are our own group, 1 (for `killpg` these are all processes), and programs whose working folder is elsewhere.
    """
    record, fifo = tmp_path / "group.json", tmp_path / "fifo"
    child, outside = (process.start(["sleep", "600"], cwd=folder) for folder in (tmp_path, "/"))
    process.record_group(record, child.pid)
    assert process.end_recorded_group(record) == child.pid
    assert child.wait(60) == -signal.SIGKILL
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda *_: pytest.fail("killed"))
        for pid in (outside.pid, os.getpgrp(), 1):
            process.record_group(record, pid)
            assert process.end_recorded_group(record) is None
        for text in (
            f'{{"group": {os.getpid()}, "started": "1"}}',
            "",
            "{",
            "[]",
            '{"group": "x", "started": 1}',
        ):
            record.write_text(text)
            assert process.end_recorded_group(record) is None
    os.mkfifo(fifo)
    assert process.end_recorded_group(fifo) is None
    process.end_group(outside)


def test_program_that_cannot_be_killed_does_not_hold_the_command(monkeypatch):
    """A program that does not end after SIGKILL, because the kernel waits for a dead file system, is given up."""
    child = process.start([sys.executable, "-c", "import time; time.sleep(600)"])
    with monkeypatch.context() as patch:
        patch.setattr(process, "GRACE_S", 0.1)
        patch.setattr(os, "killpg", lambda *_: None)
        process.end_group(child)
    assert child.returncode is None
    process.end_group(child)


def test_interrupt_while_waiting_kills_the_child(monkeypatch):
    wait, interrupted = subprocess.Popen.wait, []

    def interrupt_once(child, timeout=None):
        if not interrupted:
            interrupted.append(child.pid)
            raise KeyboardInterrupt
        return wait(child, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupt_once)
    with pytest.raises(KeyboardInterrupt):
        process.run([sys.executable, "-c", "import time; time.sleep(600)"], timeout_s=500)
    assert not is_running(interrupted[0])


def test_log_tail_is_bounded_in_lines_and_width(tmp_path):
    """The tail of a log has limited lines and width; a missing file has an empty tail."""
    log = tmp_path / "log"
    log.write_bytes(b"first\n" * 100_000 + b"\xff" + b"x" * 1000 + b"\nlast\n")
    lines = process.log_tail(log, lines=2, width=50).splitlines()
    assert (len(lines), len(lines[0]), lines[1]) == (2, 50, "last")
    assert process.log_tail(tmp_path / "none") == ""
