"""Whole runs on a device: bits that repeat, modes that agree, and first steps that are those of a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_core import run
from tests.gpu.devices import DEVICES, ROUNDING

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


def quiet(_: dict) -> None:
    """No progress."""


def trained(config) -> tuple[dict, list[dict]]:
    """The document of a run that went well, and its metrics without the wall times."""
    document = run.train(config, quiet)
    assert document["outcome"] == "ok", document["error"]
    lines = [json.loads(line) for line in Path(document["metrics"]).read_text().splitlines()]
    return document, [{k: v for k, v in entry.items() if not k.startswith("time/")} for entry in lines]


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["async", "server"])
def test_nothing_stale_means_the_same_bits_in_all_modes(short_run, device, mode):
    """Parameters and metrics of another mode are those of colocate, by kernels that repeat themselves."""
    waiting = {"rollout.max_staleness": 0}
    expected, expected_metrics = trained(short_run(device))
    weights, metrics = trained(short_run(device, mode, **waiting))
    assert weights["parameters"] == expected["parameters"]
    assert metrics == expected_metrics
    assert weights["syncs_proven_by_fingerprint"] == weights["syncs"] == 4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES)
def test_a_run_repeats_itself_to_the_bit(short_run, device, dtype):
    """In every type that a GPU computes in."""
    types = {"model.dtype": dtype, "rollout.dtype": dtype, "rollout.sync_tolerance": FLOORS[dtype]}
    results = [trained(short_run(device, **types, **{"output.name": name})) for name in ("one", "two")]
    assert results[0][0]["parameters"] == results[1][0]["parameters"]
    assert results[0][1] == results[1][1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES)
def test_trainer_and_engine_are_no_further_apart_than_the_type_allows(short_run, device, dtype):
    """The floor of a type: every sync is proven within it, and it is no more than that."""
    types = {"model.dtype": dtype, "rollout.dtype": dtype, "rollout.sync_tolerance": FLOORS[dtype]}
    document, metrics = trained(short_run(device, **types))
    assert document["max_logprob_difference"] <= FLOORS[dtype]
    assert document["syncs_proven"] == document["syncs"] == 4
    assert max(entry["logprob_difference/max"] for entry in metrics) <= FLOORS[dtype]


@pytest.mark.parametrize("device", DEVICES)
def test_an_engine_of_16_bits_is_further_from_a_trainer_of_32(short_run, device):
    """The mismatch that users train with, measured."""
    exact, _ = trained(short_run(device))
    coarse = {"rollout.dtype": "bfloat16", "rollout.sync_tolerance": 0.2, "output.name": "coarse"}
    coarse_weights, _ = trained(short_run(device, **coarse))
    assert 10 * exact["max_logprob_difference"] < coarse_weights["max_logprob_difference"]


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_in_two_parts_is_the_run_in_one(short_run, device):
    """Weights, optimizer and generators come back from the checkpoint to the device they were on."""
    expected, expected_metrics = trained(short_run(device, **{"output.name": "whole"}))
    run.train(short_run(device, **{"output.name": "parts", "train.steps": 2}), quiet)
    longer = run.train(short_run(device, **{"output.name": "parts"}), quiet, resume=True)
    assert longer["parameters"] == expected["parameters"]
    assert longer["steps"] == len(expected_metrics) == 4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SWITCHES)
def test_the_first_step_is_that_of_a_cpu(short_run, device, name):
    """Loss, gradient and mismatch, up to the order in which kernels add; the same tokens were sampled."""
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
def test_a_recorded_step_is_replayed_to_the_bit(short_run, device):
    """From its file, by this process, on the device it was made on."""
    from grpo_core.records.replay import replay

    document, _ = trained(short_run(device, **{"output.record_every": 1, "checkpoint.keep": 4}))
    for step in (1, 3):
        replayed = replay(Path(document["metrics"]).parent, step)
        assert (replayed["outcome"], replayed["first_difference"]) == ("equal", None)
