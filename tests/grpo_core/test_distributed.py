"""Training on two ranks gives the policy of one rank up to rounding, in the three modes and after a resume."""

import json
import os

import pytest
import safetensors.torch
import torch

from tests.grpo_core.conftest import SHORT, make_config, read_lines, run_training
from tests.processes import free_port, run_python

# Each test starts two processes that import PyTorch.
pytestmark = pytest.mark.long
SETTINGS = {"train.steps": 5, "sampling.dynamic": "true", "loss.kl_coefficient": 0.05, "eval.every": 2}
# Settings of each case; all cases are compared with one process in colocate mode.
CASES = {
    "colocate": {"train.micro_batch": 3},
    "async": {"rollout.mode": "async", "rollout.max_staleness": 0},
    "server": {"rollout.mode": "server"},
}


def torchrun(settings: dict, *flags: str) -> dict:
    """Train on two ranks; return the document that rank 0 printed."""
    command = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
    command += [f"--master-port={free_port()}", "-m", "grpo_core", "train", "--json"]
    command += [*flags, *(f"--{key}={value}" for key, value in settings.items())]
    done = run_python(*command, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=None)
    assert done.returncode == 0, done.stderr[-3000:]
    documents = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(documents) == 1
    assert documents[0]["outcome"] == "ok", documents[0]["error"]
    return documents[0]


def saved_parameters(folder) -> torch.Tensor:
    """Return all parameters of a finished run as one flat tensor."""
    tensors = safetensors.torch.load_file(folder / "policy" / "model.safetensors")
    return torch.cat([tensors[name].reshape(-1) for name in sorted(tensors)])


@pytest.fixture(scope="module")
def single_rank(tmp_path_factory):
    """Train on one rank; return the folder of the run."""
    folder = tmp_path_factory.mktemp("alone")
    run_training(make_config({**SHORT, **SETTINGS, "output.dir": folder, "output.name": "run"}))
    return folder / "run"


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_match_one(single_rank, tmp_path, case):
    """Metrics, without those of syncs and log-prob differences, agree to 1e-6, and so do parameters in relative norm.

    A single parameter may differ by up to 1e-5: if its gradient is zero up to rounding, the size of Adam's step depends
    on rounding alone.
    """
    settings = {**SHORT, **SETTINGS, **CASES[case], "output.dir": tmp_path, "output.name": "run"}
    torchrun(settings)
    metrics = [read_lines(folder / "metrics.jsonl") for folder in (single_rank, tmp_path / "run")]
    for single, two in zip(*metrics, strict=True):
        for name in single.keys() - {"sync/moved", "sync/difference"}:
            if not name.startswith("logprob_difference"):
                assert two[name] == pytest.approx(single[name], rel=1e-6, abs=1e-7), name
    expected, actual = saved_parameters(single_rank), saved_parameters(tmp_path / "run")
    assert float((actual - expected).norm() / expected.norm()) < 1e-6
    assert float((actual - expected).abs().max()) < 1e-5


def test_two_ranks_resume(single_rank, tmp_path):
    """A run that is resumed on two ranks has the parameters of an uninterrupted run on one rank."""
    settings = {**SHORT, **SETTINGS, "output.dir": tmp_path, "output.name": "run"}
    torchrun({**settings, "train.steps": 3})
    torchrun(settings, "--resume")
    assert len(read_lines(tmp_path / "run" / "metrics.jsonl")) == 5
    expected, actual = saved_parameters(single_rank), saved_parameters(tmp_path / "run")
    assert float((actual - expected).norm() / expected.norm()) < 1e-6
