"""Training runs on a device are deterministic, equal in all modes at staleness 0, and match the CPU in the first step.

A resumed run equals a whole one, and recorded steps replay bit for bit.
"""

from pathlib import Path

import pytest

from grpo_core import run
from tests.gpu.devices import DEVICES, ON_GPU, ROUNDING
from tests.grpo_core.conftest import run_training

TYPES = ("float32", "bfloat16")
# Largest allowed difference of a log-prob between trainer and engine; also the tolerance of sync proofs.
TOLERANCES = {"float32": 1e-4, "bfloat16": 0.2}
# Each switch takes another code path through the loss, the batch or the policy.
SWITCHES = {
    "plain": {}, "sequence ratio": {"loss.ratio": "sequence"}, "cispo": {"loss.surrogate": "cispo"},
    "sapo": {"loss.surrogate": "sapo"}, "kl in the loss": {"loss.kl_coefficient": 0.1},
    "sequence means": {"loss.aggregation": "sequence"},
    "leave one out": {"loss.advantage_baseline": "leave_one_out"},
    "masked correction": {"loss.correction": "mask", "loss.correction_level": "sequence"},
    "micro-batches": {"train.micro_batch": 5}, "adapters": {"model.lora_rank": 4},
    "small chunks": {"train.logprob_chunk": 7},
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["async", "server"])
def test_modes_are_bit_identical_without_staleness(short_run, device, mode):
    """With a maximal staleness of 0, async and server mode give the parameters and metrics of colocate mode."""
    waiting = {"rollout.max_staleness": 0}
    expected, expected_metrics = run_training(short_run(device))
    weights, metrics = run_training(short_run(device, mode, **waiting))
    assert weights["parameters"] == expected["parameters"]
    assert metrics == expected_metrics
    assert weights["syncs_proven_by_fingerprint"] == weights["syncs"] == 4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES)
def test_run_is_deterministic(short_run, device, dtype):
    """Two equal runs have equal parameters and metrics; trainer and engine differ only by the dtype's rounding."""
    types = {"model.dtype": dtype, "rollout.dtype": dtype, "rollout.sync_tolerance": TOLERANCES[dtype]}
    results = [run_training(short_run(device, **types, **{"output.name": name})) for name in ("one", "two")]
    assert results[0][0]["parameters"] == results[1][0]["parameters"]
    assert results[0][1] == results[1][1]
    document, metrics = results[0]
    assert document["max_logprob_difference"] <= TOLERANCES[dtype]
    assert document["syncs_proven"] == document["syncs"] == 4
    assert max(entry["logprob_difference/max"] for entry in metrics) <= TOLERANCES[dtype]


@pytest.mark.parametrize("device", DEVICES)
def test_resumed_run_is_identical(short_run, device):
    """A run of two steps that is resumed has the parameters and the four steps of an uninterrupted run."""
    expected, expected_metrics = run_training(short_run(device, **{"output.name": "whole"}))
    run_training(short_run(device, **{"output.name": "parts", "train.steps": 2}))
    longer = run.train(short_run(device, **{"output.name": "parts"}), lambda _: None, resume=True)
    assert longer["parameters"] == expected["parameters"]
    assert longer["steps"] == len(expected_metrics) == 4


@pytest.mark.parametrize(
    ("device", "name"),
    [("cpu", "adapters"), *(pytest.param("cuda", name, marks=ON_GPU) for name in SWITCHES)],
)
def test_first_step_matches_the_cpu(short_run, device, name):
    """Rewards, loss, gradient norm, entropy, KL and clip ratio agree up to the order of additions."""
    settings = {**SWITCHES[name], "train.steps": 1}
    _, (on_device,) = run_training(short_run(device, **settings, **{"output.name": "here"}))
    _, (on_cpu,) = run_training(short_run("cpu", **settings, **{"output.name": "there"}))
    assert on_device["completions/tokens"] == on_cpu["completions/tokens"]
    for key in ("reward/mean", "loss", "grad_norm", "entropy", "kl", "clip_ratio"):
        assert on_device[key] == pytest.approx(on_cpu[key], rel=10 * ROUNDING, abs=ROUNDING), key


@pytest.mark.parametrize("device", DEVICES)
def test_replay_is_bit_identical(short_run, device):
    """A recorded step is replayed from its file on the same device, without a difference."""
    from grpo_core.records.replay import replay

    document, _ = run_training(short_run(device, **{"output.record_every": 1, "checkpoint.keep": 4}))
    for step in (1, 3):
        replayed = replay(Path(document["metrics"]).parent, step)
        assert (replayed["outcome"], replayed["first_difference"]) == ("equal", None)
