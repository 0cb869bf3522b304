"""Training runs on a device: repeatable bits, modes that agree, and first steps that equal the CPU's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_core import run
from tests.gpu.devices import DEVICES, ON_GPU, ROUNDING

TYPES = ("float32", "bfloat16")
# The largest difference of a log-prob between trainer and engine, and what a proof of a sync allows for.
FLOORS = {"float32": 1e-4, "bfloat16": 0.2}
# Switches that each take another way through the loss, the batch or the policy.
SWITCHES = {
    "plain": {},
    "sequence ratio": {"loss.ratio": "sequence"},
    "cispo": {"loss.surrogate": "cispo"},
    "sapo": {"loss.surrogate": "sapo"},
    "kl in the loss": {"loss.kl_coefficient": 0.1},
    "sequence means": {"loss.aggregation": "sequence"},
    "leave one out": {"loss.advantage_baseline": "leave_one_out"},
    "masked correction": {"loss.correction": "mask", "loss.correction_level": "sequence"},
    "micro-batches": {"train.micro_batch": 5},
    "adapters": {"model.lora_rank": 4},
    "small chunks": {"train.logprob_chunk": 7},
}


def ignore_progress(_: dict) -> None:
    """Accept progress and print nothing."""


def trained(config) -> tuple[dict, list[dict]]:
    """Train; return the summary, and the metrics without wall times."""
    document = run.train(config, ignore_progress)
    assert document["outcome"] == "ok", document["error"]
    lines = [json.loads(line) for line in Path(document["metrics"]).read_text().splitlines()]
    return document, [{k: v for k, v in entry.items() if not k.startswith("time/")} for entry in lines]


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["async", "server"])
def test_modes_are_bit_identical_without_staleness(short_run, device, mode):
    """Kernels that repeat themselves give the parameters and metrics of colocate."""
    waiting = {"rollout.max_staleness": 0}
    expected, expected_metrics = trained(short_run(device))
    weights, metrics = trained(short_run(device, mode, **waiting))
    assert weights["parameters"] == expected["parameters"]
    assert metrics == expected_metrics
    assert weights["syncs_proven_by_fingerprint"] == weights["syncs"] == 4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES)
def test_run_is_deterministic(short_run, device, dtype):
    """This holds in every dtype that a GPU computes in."""
    types = {"model.dtype": dtype, "rollout.dtype": dtype, "rollout.sync_tolerance": FLOORS[dtype]}
    results = [trained(short_run(device, **types, **{"output.name": name})) for name in ("one", "two")]
    assert results[0][0]["parameters"] == results[1][0]["parameters"]
    assert results[0][1] == results[1][1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES)
def test_trainer_engine_mismatch_is_within_the_dtypes_rounding(short_run, device, dtype):
    """Every sync is proven within this tolerance, which is no larger than needed."""
    types = {"model.dtype": dtype, "rollout.dtype": dtype, "rollout.sync_tolerance": FLOORS[dtype]}
    document, metrics = trained(short_run(device, **types))
    assert document["max_logprob_difference"] <= FLOORS[dtype]
    assert document["syncs_proven"] == document["syncs"] == 4
    assert max(entry["logprob_difference/max"] for entry in metrics) <= FLOORS[dtype]


@pytest.mark.parametrize("device", DEVICES)
def test_16_bit_engine_differs_from_32_bit_trainer(short_run, device):
    """This is the mismatch that users train with, measured."""
    exact, _ = trained(short_run(device))
    coarse = {"rollout.dtype": "bfloat16", "rollout.sync_tolerance": 0.2, "output.name": "coarse"}
    coarse_weights, _ = trained(short_run(device, **coarse))
    assert 10 * exact["max_logprob_difference"] < coarse_weights["max_logprob_difference"]


@pytest.mark.parametrize("device", DEVICES)
def test_resumed_run_is_identical(short_run, device):
    """Weights, optimizer and generators return from the checkpoint to their device."""
    expected, expected_metrics = trained(short_run(device, **{"output.name": "whole"}))
    run.train(short_run(device, **{"output.name": "parts", "train.steps": 2}), ignore_progress)
    longer = run.train(short_run(device, **{"output.name": "parts"}), ignore_progress, resume=True)
    assert longer["parameters"] == expected["parameters"]
    assert longer["steps"] == len(expected_metrics) == 4


@pytest.mark.parametrize(
    ("device", "name"),
    [("cpu", "adapters"), *(pytest.param("cuda", name, marks=ON_GPU) for name in SWITCHES)],
)
def test_first_step_matches_the_cpu(short_run, device, name):
    """Loss, gradient and mismatch agree up to the order of additions, on the same sampled tokens."""
    settings = {**SWITCHES[name], "train.steps": 1}
    _, (on_device,) = trained(short_run(device, **settings, **{"output.name": "here"}))
    _, (on_cpu,) = trained(short_run("cpu", **settings, **{"output.name": "there"}))
    assert on_device["completions/tokens"] == on_cpu["completions/tokens"]
    for key in ("reward/mean", "loss", "grad_norm", "entropy", "kl", "clip_ratio"):
        assert on_device[key] == pytest.approx(on_cpu[key], rel=10 * ROUNDING, abs=ROUNDING), key


@pytest.mark.parametrize("device", DEVICES)
def test_evaluation_changes_nothing(short_run, device):
    """It samples on the same device between two rollouts."""
    plain, _ = trained(short_run(device))
    evaluated, metrics = trained(
        short_run(device, **{"eval.every": 2, "eval.prompts": 6, "output.name": "evaluated"})
    )
    assert evaluated["parameters"] == plain["parameters"]
    assert any(key.startswith("eval/") for key in metrics[0])


@pytest.mark.parametrize("device", DEVICES)
def test_replay_is_bit_identical(short_run, device):
    """It is replayed from its file by this process, on the same device."""
    from grpo_core.records.replay import replay

    document, _ = trained(short_run(device, **{"output.record_every": 1, "checkpoint.keep": 4}))
    for step in (1, 3):
        replayed = replay(Path(document["metrics"]).parent, step)
        assert (replayed["outcome"], replayed["first_difference"]) == ("equal", None)
