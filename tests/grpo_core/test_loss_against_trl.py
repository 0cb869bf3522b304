"""Our loss, its gradient and our advantages against TRL's own code, on the same tensors."""

import json
from pathlib import Path

import pytest

from tests.cells import cell_python, run_in_cell

pytestmark = pytest.mark.vllm

PROGRAMS = Path(__file__).parent / "cell_programs"


def compared(cell: str, program: str) -> dict:
    """What the program says in that cell."""
    release = cell.split("+trl-")[1]
    installed = cell_python(cell).parent.parent.glob(f"lib/python3*/site-packages/trl-{release}.dist-info")
    if not list(installed):
        pytest.skip(
            f"no TRL in cell {cell}: its vLLM part alone is built; "
            f"install trl=={release}, accelerate and datasets beside it"
        )
    done = run_in_cell(cell, str(PROGRAMS / program))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "program", "cases", "types"),
    [
        (
            "vllm-0.31.0+trl-1.16.0",
            "trl_loss.py",
            2520,
            {"grpo", "bnpo", "dapo", "dr_grpo", "luspo", "cispo", "sapo"},
        ),
        ("vllm-0.8.5.post1+trl-0.17.0", "trl_017_loss.py", 144, {"grpo", "bnpo", "dr_grpo"}),
    ],
)
def test_loss_gradient_advantages_and_defaults_are_trls(cell, program, cases, types):
    """Each loss type with every switch TRL has for it, and what TRL does when asked for nothing else."""
    seen = compared(cell, program)
    assert (seen["trl"], seen["cases"]) == (cell.split("+trl-")[1], cases)
    assert set(seen["worst"]["float64"]) == set(seen["worst"]["float32"]) == types
    assert max(seen["worst"]["float64"].values()) < 1e-12, seen["worst"]
    assert max(seen["worst"]["float32"].values()) < 1e-6, seen["worst"]
    assert max(seen["advantages"].values()) < 1e-12, seen["advantages"]
    assert seen["defaults"] == []
