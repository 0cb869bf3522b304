"""grpo_core's loss, its gradient, advantages and defaults equal those of TRL 1.16.0 and 0.17.0."""

import json
from pathlib import Path

import pytest

from tests.cells import cell_python, peers_python, run_with

pytestmark = pytest.mark.vllm

PROGRAMS = Path(__file__).parent / "peer_programs"


def newest_trl_python() -> Path:
    """Return the Python of the matrix's cell with the newest TRL."""
    return cell_python("vllm-0.31.0+trl-1.16.0")


def trl_017_python() -> Path:
    """Return the Python of an environment with TRL 0.17.0 and without vLLM."""
    python = peers_python().parents[2] / "peers-trl-0.17.0" / "bin" / "python"
    if not python.is_file():
        pytest.skip(f"no TRL 0.17.0 at {python}; build it: nox -s tests-cells")
    return python


@pytest.mark.slow
@pytest.mark.parametrize(
    ("python", "release", "cases", "types"),
    [
        (newest_trl_python, "1.16.0", 1260, {"grpo", "bnpo", "dapo", "dr_grpo", "luspo", "cispo", "sapo"}),
        (trl_017_python, "0.17.0", 144, {"grpo", "bnpo", "dr_grpo"}),
    ],
)
def test_loss_gradient_advantages_and_defaults_match_trl(python, release, cases, types):
    """Loss and gradient agree for each dialect with TRL's options; advantages and TRL's defaults agree, too."""
    done = run_with(python(), str(PROGRAMS / "trl_loss.py"), path=[str(PROGRAMS)])
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert (report["trl"], report["cases"]) == (release, cases)
    assert set(report["worst"]["float64"]) == set(report["worst"]["float32"]) == types
    assert max(report["worst"]["float64"].values()) < 1e-12, report["worst"]
    assert max(report["worst"]["float32"].values()) < 1e-6, report["worst"]
    assert len(report["sapo_temperatures"]) == (1 if release == "1.16.0" else 0)
    assert max(report["sapo_temperatures"].values(), default=0.0) < 1e-12, report["sapo_temperatures"]
    assert max(report["advantages"].values()) < 1e-12, report["advantages"]
    assert report["defaults"] == []
