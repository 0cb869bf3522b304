"""`AuditCallback` in TRL's own GRPOTrainer, in real cells: today's, and an older one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cells import ROOT, cell_python

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
PROGRAM = Path(__file__).parent / "programs" / "trl_watched.py"
CELLS = ("vllm-0.32.0+trl-1.16.0", "vllm-0.10.2+trl-0.24.0")


def watched(cell, folder, reward):
    """Return the program's output and its document."""
    done = subprocess.run(
        [cell_python(cell), PROGRAM, folder, reward],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), json.loads((folder / "audit.json").read_text())


@pytest.mark.parametrize("cell", CELLS)
def test_a_healthy_run_is_clean(cell, tmp_path):
    """With scalars for the callbacks that write curves, and no line of log."""
    reported, document = watched(cell, tmp_path, "spread")
    assert (reported["lines"], document["outcome"]) == ([], "clean")
    assert [logs["audit/faults"] for logs in reported["logs"] if logs] == [0.0] * 20


@pytest.mark.parametrize("cell", CELLS)
def test_constant_reward_is_reported(cell, tmp_path):
    """A constant reward is reported within ten steps: in the log, as scalars and in the document."""
    reported, document = watched(cell, tmp_path, "constant")
    assert any("REW004" in line for line in reported["lines"])
    assert {logs["audit/faults"] >= 1 for logs in reported["logs"][10:] if logs} == {True}
    assert document["outcome"] == "fault"
