"""`AuditCallback` in TRL's GRPOTrainer reports a fault for a constant reward, and none for a varied one.

The tests are marked `vllm` and `slow`: they run in cells with the current and an older TRL release.
"""

import json
from pathlib import Path

import pytest

from tests.cells import ROOT, cell_python
from tests.processes import run_text

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
PROGRAM = Path(__file__).parent / "programs" / "trl_with_callback.py"
CELLS = ("vllm-0.32.0+trl-1.16.0", "vllm-0.10.2+trl-0.24.0")


def train_with_callback(cell, folder, reward):
    """Run the program in a cell; return its output and the audit document."""
    done = run_text(
        [cell_python(cell), PROGRAM, folder, reward],
        timeout=1500,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), json.loads((folder / "audit.json").read_text())


@pytest.mark.parametrize("cell", CELLS)
def test_only_the_constant_reward_is_a_fault_in_log_scalars_and_document(cell, tmp_path):
    reported, document = train_with_callback(cell, tmp_path, "spread")
    assert (reported["lines"], document["outcome"]) == ([], "clean")
    assert [logs["audit/faults"] for logs in reported["logs"] if logs] == [0.0] * 20
    reported, document = train_with_callback(cell, tmp_path, "constant")
    assert any("REW004" in line for line in reported["lines"])
    assert {logs["audit/faults"] >= 1 for logs in reported["logs"][10:] if logs} == {True}
    assert document["outcome"] == "fault"
