"""grpo_core's loss, its gradient and advantages equal those of verl, OpenRLHF and ms-swift on the same tensors."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from grpo_core.learn.dialects import DIALECTS

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "peer_programs"
MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
# Program -> the release it must have met, the cases of the loss, those of the advantages.
EXPECTED = {
    "verl_loss.py": (
        "verl-0.9.1",
        {f"{loss} {mode}" for loss in ("vanilla", "gspo", "cispo", "gpg") for mode in MODES}
        | {"sapo seq-mean-token-mean", "vanilla far"},
        {"grpo", "grpo no std", "grpo vectorized", "grpo vectorized no std", "rloo", "rloo vectorized"},
    ),
    "openrlhf_loss.py": (
        "openrlhf-0.11.2",
        {"ppo without KL", "ppo with KL", "gspo without KL"},
        {"group_norm", "dr_grpo", "rloo"},
    ),
    "swift_loss.py": (
        "ms-swift-4.6.0",
        {"grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo"},
        {"grpo", "grpo no std", "rloo"},
    ),
}
# The peer always computes these in float32.
SINGLE = {"ppo with KL", "grpo vectorized", "grpo vectorized no std"}


def run_peer_program(program, stage):
    """Run a program with the peers' Python and this grpo_core, or skip the test if there is no such Python."""
    python = os.environ.get("GRPO_DOCTOR_PEERS")
    if not python or not Path(python).exists():
        unset = f"no Python with the peers at GRPO_DOCTOR_PEERS={python or '(unset)'}"
        pytest.skip(f"{unset}; build it: nox -s tests-cells")
    (stage / "grpo_core").symlink_to(ROOT / "grpo_core")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {
        "PYTHONPATH": str(stage),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(stage / "huggingface"),
        "MODELSCOPE_CACHE": str(stage / "modelscope"),
    }
    return subprocess.run(
        [python, str(PROGRAMS / program)],
        env=environment,
        cwd=stage,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize("program", EXPECTED)
def test_loss_gradient_and_advantages_match_the_peer(program, tmp_path):
    """Each case that our settings can express is equal up to rounding, also in micro-batches."""
    done = run_peer_program(program, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    release, losses, advantages = EXPECTED[program]
    assert report["version"] == release.rpartition("-")[2]
    assert (set(report["losses"]), set(report["advantages"])) == (losses, advantages)
    forms = [record.form for record in DIALECTS.values() if record.release == release]
    assert set(report["records"]) == {f"{form} {part}" for form in forms for part in ("loss", "advantages")}
    differences = {**report["losses"], **report["advantages"], **report["records"]}
    bounds = {name: 1e-6 if name in SINGLE else 1e-12 for name in differences}
    assert {name: worst for name, worst in differences.items() if not worst < bounds[name]} == {}
