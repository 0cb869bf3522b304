"""Who reads only the first line of an answer has it, and hears of nothing else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.screen import ROOT

COMMANDS = (
    "diagnostics --help", "diagnostics doctor --help", "diagnostics explain SCH001", "diagnostics catalogue",
    "diagnostics.matrix --help", "diagnostics.matrix run --help", "repro --help", "repro list",
    "grpo_core --help", "grpo_core train --help-settings",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_that_nobody_reads_is_no_fault(command):
    """As behind `| head -1`: exit code 0, nothing on standard error."""
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
    assert (done.returncode, done.stderr) == (0, "")
