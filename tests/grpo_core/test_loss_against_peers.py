"""Our loss, its gradient and our advantages against verl's, OpenRLHF's and ms-swift's own code, on the same tensors."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from grpo_core.config import GATES
from grpo_core.learn.dialects import DIALECTS

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "peer_programs"
# The settings each program compared, as last recorded; see test_switches.py.
SWITCHES = json.loads((Path(__file__).parent / "switches.json").read_text())
MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
FORMS = ("dppo_tv", "dppo_kl", "dro", "clip_cov", "kl_cov", "geo_mean")
REJECTIONS = {
    f"{level}_{estimator}"
    for level in ("token", "seq_sum", "seq_mean", "seq_max")
    for estimator in ("k1", "k2", "k3")
} - {"seq_max_k1"}
# Program -> the version it must have met, the cases of the loss, those of the advantages.
EXPECTED = {
    "verl_loss.py": (
        "0.9.1",
        {f"{loss} {mode}" for loss in ("vanilla", "gspo", "cispo", "gpg") for mode in (*MODES, "token-sum")}
        | {"sapo seq-mean-token-mean", "vanilla far"},
        {"grpo", "grpo no std", "grpo vectorized", "grpo vectorized no std", "rloo", "rloo vectorized"},
    ),
    "verl_forms.py": (
        "0.9.1",
        {f"{form} {correction}" for form in FORMS for correction in (None, "truncate", "mask")}
        | {f"reject {option}" for option in REJECTIONS}
        | {f"entropy {mode}" for mode in (*MODES, "token-sum")},
        {"opo", "pass@k", "pass@k no std", "reinforce++", "reinforce++ baseline", "gdpo"},
    ),
    "verl_050_loss.py": ("0.5.0", set(MODES[:3]), {"grpo", "grpo no std", "rloo"}),
    "openrlhf_loss.py": (
        "0.11.2",
        {"ppo without KL", "ppo with KL", "gspo without KL"}
        | {f"ppo {kl} KL, {gate}" for kl in ("with", "without") for gate in GATES},
        {"group_norm", "dr_grpo", "rloo"},
    ),
    "swift_loss.py": (
        "4.6.0",
        {
            "grpo",
            "bnpo",
            "dr_grpo",
            "dapo",
            "cispo",
            "sapo",
            *(f"off-policy {loss}" for loss in ("grpo", "dapo", "sapo")),
        },
        {
            "grpo",
            "grpo no std",
            "rloo",
            "gdpo",
            *(f"reinforce_plus_plus {s}" for s in ("batch", "group", "none")),
        },
    ),
}
# Peers whose dialects a program runs as recorded.
RECORDS = {
    "verl_loss.py": "verl-0.9.1/",
    "openrlhf_loss.py": "openrlhf-0.11.2/",
    "swift_loss.py": "ms-swift-4.6.0/",
}
# The peer always computes these in float32.
SINGLE = {
    "ppo with KL",
    *(f"ppo with KL, {gate}" for gate in GATES),
    "grpo vectorized",
    "grpo vectorized no std",
    "gdpo",
}
# Here it adds 1e-8 to a count, or to a variance, which ours does not.
SINGLE |= {"reinforce++", "reinforce++ baseline", *(f"geo_mean {c}" for c in (None, "truncate", "mask"))}


def run(program, stage):
    """Run a program with the peers' Python, with grpo_core and nothing else of ours to import; or skip."""
    python = os.environ.get("GRPO_DOCTOR_PEERS")
    if not python or not Path(python).exists():
        pytest.skip(
            f"no Python with the peers at GRPO_DOCTOR_PEERS={python or '(unset)'}; build it: nox -s tests-cells"
        )
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
        env=environment, cwd=stage, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize("program", EXPECTED)
def test_loss_gradient_and_advantages_are_the_peers(program, tmp_path):
    """Each case that our settings can express is equal up to rounding, with the step split into micro-batches."""
    done = run(program, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    version, losses, advantages = EXPECTED[program]
    assert (report["version"], set(report["losses"]), set(report["advantages"])) == (
        version,
        losses,
        advantages,
    )
    records = [
        d.form for d in DIALECTS.values() if program in RECORDS and d.name.startswith(RECORDS[program])
    ]
    cases = {f"{form} {part}" for form in records for part in ("loss", "advantages")}
    assert set(report.get("records", ())) == cases
    differences = {**report["losses"], **report["advantages"], **report.get("records", {})}
    far = {
        name: worst for name, worst in differences.items() if not worst < (1e-6 if name in SINGLE else 1e-12)
    }
    assert far == {}
    assert report["switches"] == SWITCHES[program]
