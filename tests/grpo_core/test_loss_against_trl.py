"""Our loss and its gradient against TRL's own code, on the same tensors."""

import json
from pathlib import Path

import pytest

from tests.cells import run_in_cell

pytestmark = pytest.mark.vllm

PROGRAM = Path(__file__).parent / "cell_programs" / "trl_loss.py"


def test_loss_and_gradient_are_trls():
    """Each loss type, ratio level, KL, cap and correction, in float64: equal but for rounding."""
    done = run_in_cell("vllm-0.31.0+trl-1.16.0", str(PROGRAM))
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    assert (seen["trl"], seen["cases"]) == ("1.16.0", 1120)
    assert set(seen["worst"]) == {"grpo", "bnpo", "dapo", "dr_grpo", "luspo", "cispo", "sapo"}
    assert max(seen["worst"].values()) < 1e-12, seen["worst"]
