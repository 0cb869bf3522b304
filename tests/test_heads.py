"""Who reads only the first line of an answer has it, and hears of nothing else; the exit code is the whole answer's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.screen import ROOT

COMMANDS = {
    "diagnostics --help": 0,
    "diagnostics doctor --help": 0,
    "diagnostics explain SCH001": 0,
    "diagnostics explain SCH001 --format json": 0,
    "diagnostics catalogue": 0,
    "diagnostics triage examples/dead_run.log": 1,
    "diagnostics triage examples/dead_run.log --format sarif": 1,
    "diagnostics triage LICENSE": 3,
    "diagnostics lint README.md --format json": 3,
    "diagnostics.matrix --help": 0,
    "diagnostics.matrix run --help": 0,
    "repro --help": 0,
    "repro list": 0,
    "grpo_core --help": 0,
    "grpo_core train --help-settings": 0,
}


@pytest.mark.parametrize(("command", "code"), COMMANDS.items())
def test_a_pipe_that_nobody_reads_is_no_fault(command, code):
    """As behind `| head -1`: nothing on standard error, and no other exit code than to somebody who reads it all."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", *command.split()],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=ROOT,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize("closed", [1, 2])
def test_a_stream_that_is_not_there_is_no_fault(closed):
    """As behind `>&-`, and in a service without streams."""
    done = subprocess.run(
        [
            "/bin/sh",
            "-c",
            f'exec "$0" -m diagnostics triage examples/dead_run.log {closed}>&-',
            sys.executable,
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
def test_an_answer_that_could_not_be_written_is_none():
    """A full disk is said, and is no fault of the program."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "diagnostics", "triage", "examples/dead_run.log"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=ROOT,
        )
    said = "diagnostics: No space left on device: the answer is not whole\n"
    assert (done.returncode, done.stderr) == (2, said)
