"""grpo_core's loss, its gradient and advantages equal those of verl, OpenRLHF and ms-swift, up to rounding.

grpo_core and the peer get the same tensors. The comparison runs in the peers' environment (GRPO_DOCTOR_PEERS), or is
skipped without it.
"""

import json
from pathlib import Path

import pytest

from grpo_core.learn.dialects import DIALECTS
from tests.cells import peers_python, run_with

PROGRAMS = Path(__file__).parent / "peer_programs"
AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
# Program -> the release that it must find, the cases of the loss, those of the advantages.
EXPECTED = {
    "verl_loss.py": (
        "verl-0.9.1",
        {f"{loss} {total}" for loss in ("vanilla", "gspo", "cispo", "gpg") for total in AGGREGATIONS}
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


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize("program", EXPECTED)
def test_loss_gradient_and_advantages_match_the_peer(program, tmp_path, monkeypatch):
    """The programs in `peer_programs` find each case and dialect equal up to rounding, also in micro-batches."""
    for variable in ("HF_HOME", "MODELSCOPE_CACHE"):
        monkeypatch.setenv(variable, str(tmp_path))
    done = run_with(peers_python(), str(PROGRAMS / program), path=[str(PROGRAMS)])
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
