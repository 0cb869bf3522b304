"""Ctrl-C at any moment of a program: no traceback, and an end by the signal or with 130."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Runs a program as `python -m` does, and has the kernel send it SIGINT where it looks for a module.
SENT = """
import enum, runpy, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

given, wanted, sys.argv = sys.argv[1], sys.argv[2], sys.argv[3:]
signal.signal(signal.SIGINT, signal.SIG_IGN if given == "ignored" else signal.default_int_handler)
sys.meta_path.insert(0, Finder())
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
EXPLAINED, LISTED, CHECKED = "diagnostics explain SCH001", "repro list", "grpo_core check"


def sent(command, wanted, given="as usual"):
    """Runs a program that is sent the signal where it looks for this module."""
    return subprocess.run(
        [sys.executable, "-c", SENT, given, wanted, *command.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (EXPLAINED, "diagnostics.door"),
        (LISTED, "repro.waiting"),
        (CHECKED, "grpo_core.config"),
        ("diagnostics.matrix --help", "diagnostics.matrix.commands"),
    ],
)
def test_before_a_command_is_there_it_ends_by_the_signal(command, wanted):
    """As any program does that has begun nothing, and it says nothing: a shell shows 130."""
    done = sent(command, wanted)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize(
    ("command", "wanted", "said"),
    [
        (EXPLAINED, "diagnostics.catalog.loader", "diagnostics: interrupted\n"),
        (LISTED, "repro.issues.cfg019", "repro: interrupted; the processes it started are gone\n"),
        (CHECKED, "grpo_core.records.dumps", "grpo_core: interrupted (SIGINT)\n"),
    ],
)
def test_a_command_says_that_it_was_interrupted(command, wanted, said):
    """In one line, with 130."""
    done = sent(command, wanted)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)


def test_words_of_a_refusal_are_no_command_any_more():
    """A wrong use is said by modules of its own; nobody who interrupts that is shown where."""
    done = sent(CHECKED, "grpo_core.show.visible")
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_what_is_ignored_stays_ignored():
    """As a shell has it for what it starts in the background."""
    done = sent(EXPLAINED, "diagnostics.catalog.loader", "ignored")
    assert (done.returncode, done.stderr) == (0, "")
    assert "SCH001" in done.stdout


# Runs a program as `python -m` does, counts its calls from where Ctrl-C is untaken on, and sends it the signal at one.
COUNTED = """
import _signal, atexit, runpy, signal, sys

calls = None

def counted(frame, event, argument):
    global calls
    if calls is not None:
        calls += event == "call"
        if calls == moment:
            sys.setprofile(None)
            signal.raise_signal(number)
    elif _signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        calls = 0

moment, number, counts, sys.argv = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
signal.signal(signal.SIGINT, signal.default_int_handler)
if not moment:
    atexit.register(lambda: open(counts, "w").write(str(calls)))
sys.setprofile(counted)
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def counted(command, moment, number, folder):
    """Runs a program that is sent the signal at this call of its own; nothing is sent at moment 0."""
    kept = folder / "kept"
    kept.mkdir(exist_ok=True)
    return subprocess.run(
        [
            sys.executable,
            "-c",
            COUNTED,
            str(moment),
            str(int(number)),
            str(folder / "calls"),
            *command.split(),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(kept)},
    )


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("command", [EXPLAINED, LISTED, CHECKED, "diagnostics triage README.md"])
def test_at_any_moment(command, number, tmp_path):
    """Spread over all that it calls from its first line on: no traceback, an end by the signal, nothing left."""
    whole = counted(command, 0, number, tmp_path)
    calls = int((tmp_path / "calls").read_text())
    assert calls > 1000
    for place in range(12):
        done = counted(command, 1 + calls * place // 12, number, tmp_path)
        # What Python calls back itself (a weak reference, a `__del__`) can end nothing: it says so, and goes on.
        assert "Traceback" not in done.stderr or done.stderr.startswith("Exception ignored in"), done.stderr
        # What it has said and only tidies up after may be whole by then.
        assert done.returncode in {128 + number, -number, whole.returncode}, (place, done.stderr)
        assert not list((tmp_path / "kept").iterdir())
