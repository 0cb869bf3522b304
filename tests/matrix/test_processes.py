"""Programs in cells: time limits, whole process groups, what a run that was killed left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diagnostics.processes import end_left_over, run, tail

CHILD = "import os, time; open('child', 'w').write(str(os.getpid())); time.sleep(600)"
START = "import os, subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {!r}])"


@pytest.fixture
def program(tmp_path):
    """Runs a Python text as a program."""

    def _run(text, timeout_s=500, **more):
        return run(
            [sys.executable, "-c", text], environment={"PATH": os.environ["PATH"]}, log=tmp_path / "program.log",
            timeout_s=timeout_s, folder=tmp_path, **more,
        )  # fmt: skip

    _run.log = tmp_path / "program.log"
    return _run


def running(pid):
    """Tells whether a process runs; one that nobody has waited for yet doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition):
    """Waits until something holds."""
    end = time.monotonic() + 500
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_output_and_log_are_kept_apart(program):
    """Standard output is the answer, standard error the log."""
    done = program("import sys; print('answer'); print('noise', file=sys.stderr); sys.exit(3)")
    assert (done.code, done.output, done.timed_out) == (3, "answer\n", False)
    assert program.log.read_text() == "noise\n"


def test_only_the_given_variables_reach_it(program, monkeypatch):
    """No token of the user's, no PYTHONPATH of ours."""
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert "secret" not in program("import os; print(dict(os.environ))").output


def test_a_time_limit_ends_the_whole_group(program, tmp_path):
    """The children of a program that takes too long go with it, those too that ignore SIGTERM."""
    child = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{CHILD}"
    text = f"{START.format(child)}\nwhile True: time.sleep(1)"
    for limit_s in (2, 20, 200):  # where the cores are busy it may not have got so far as to have a child
        done = program(text, timeout_s=limit_s)
        assert done.timed_out
        assert limit_s <= done.seconds < 600
        if (tmp_path / "child").exists() and (tmp_path / "child").read_text():
            break
    until(lambda: not running(int((tmp_path / "child").read_text())))


def test_children_left_behind_by_a_normal_end_go_too(program, tmp_path):
    """A program that ends while its worker goes on leaves nothing running."""
    waiting = "while not os.path.exists('child') or not open('child').read(): time.sleep(0.01)"
    text = f"{START.format(CHILD)}\n{waiting}"
    assert program(text).code == 0
    until(lambda: not running(int((tmp_path / "child").read_text())))


def test_an_interrupt_ends_it_at_once(program, tmp_path, monkeypatch):
    """Ctrl-C while waiting: the group is ended before the exception goes on."""
    wait = subprocess.Popen.wait
    calls = []

    def interrupted(self, timeout=None):
        if not calls:
            calls.append(self.pid)
            raise KeyboardInterrupt
        return wait(self, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        program("import time; time.sleep(600)")
    assert not running(calls[0])


def test_what_a_killed_run_left_is_ended(tmp_path):
    """The ledger of a run that was killed names its group; the next run ends it, and no stranger of the same number."""
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    ledger = tmp_path / "running.json"
    started = Path(f"/proc/{left.pid}/stat").read_text().rpartition(")")[2].split()[19]
    ledger.write_text(json.dumps({"group": left.pid, "started": "0"}))
    assert end_left_over(ledger) is None
    assert running(left.pid)
    ledger.write_text(json.dumps({"group": left.pid, "started": started}))
    assert end_left_over(ledger) == left.pid
    left.wait()
    assert end_left_over(ledger) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"group": "x", "started": 1}'])
def test_a_torn_ledger_is_no_ledger(tmp_path, text):
    """Whatever is in it, nothing is killed."""
    (tmp_path / "running.json").write_text(text)
    assert end_left_over(tmp_path / "running.json") is None


def test_the_tail_of_a_log_is_bounded(tmp_path):
    """The last lines, cut in width; bytes that are no text do no harm; no file is an empty tail."""
    log = tmp_path / "log"
    log.write_bytes(b"first\n" * 100_000 + b"\xff" + b"x" * 1000 + b"\nlast\n")
    found = tail(log, lines=2, width=50).splitlines()
    assert (len(found), len(found[0]), found[1]) == (2, 50, "last")
    assert tail(tmp_path / "none") == ""
