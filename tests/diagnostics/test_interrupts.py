"""Ctrl-C at any moment of a program: no traceback, and an end by the signal or with 130."""

import os
import random
import re
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
        (EXPLAINED, "diagnostics.catalogue.loader", "diagnostics: interrupted\n"),
        (LISTED, "repro.issues.cfg019", "repro: interrupted; the processes it started are gone\n"),
        (CHECKED, "grpo_core.records.dumps", "grpo_core: interrupted (SIGINT)\n"),
    ],
)
def test_a_command_says_that_it_was_interrupted(command, wanted, said):
    """In one line, with 130."""
    done = sent(command, wanted)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)


def test_what_is_ignored_stays_ignored():
    """As a shell has it for what it starts in the background."""
    done = sent(EXPLAINED, "diagnostics.catalogue.loader", "ignored")
    assert (done.returncode, done.stderr) == (0, "")
    assert "SCH001" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("command", [EXPLAINED, LISTED, CHECKED, "diagnostics triage README.md"])
def test_at_any_moment(command, number, tmp_path):
    """Nothing of ours is in a traceback, whenever it comes; Python's own first steps may show one."""
    numbers = random.Random(f"{command} {number}")
    for place in range(20):
        with (tmp_path / f"{place}").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", *command.split()],
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
            )
        # However far it gets in that time: whatever it is doing then, the same must hold.
        try:
            process.wait(numbers.uniform(0, 0.5))
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        code, said = process.wait(), (tmp_path / f"{place}").read_text(errors="replace")
        if "Traceback" in said:
            assert code in {1, -number}
            assert "<frozen site>" in said or "<frozen runpy>" in said, said
            ours = [line for line in said.splitlines() if str(ROOT) in line]
            assert not [line for line in ours if not re.search("__(main|init)__|/interrupts", line)], said
        else:
            assert code in {0, 1, 2, 3, 128 + number, -number}, (code, said)
    assert {path.name for path in tmp_path.iterdir()} == {str(place) for place in range(20)}
