"""Updates use fixed proximal log-probs, follow the learning rate's schedule, and are refused on NaN.

Mini-batches update in sequence, micro-batches change only rounding.
"""

import math

import pytest
import torch

from grpo_core.config import Config
from grpo_core.learn.batch import make_batch
from grpo_core.learn.update import NotFiniteError, Updater
from grpo_core.machine.world import World
from grpo_core.types import Completion, Prompt, Sample
from tests.grpo_core.conftest import make_config, make_policy, run_training


def batch(advantages=(1.0, -0.5, 0.3, -0.8, 0.2)):
    """Return completions of different lengths, to prompts of different lengths."""
    samples = []
    for i, advantage in enumerate(advantages):
        ids = tuple((i + j) % 10 for j in range(1 + 2 * i % 5))
        completion = Completion(f"r{i}", ids, (-2.0,) * len(ids), (0,) * len(ids), "length")
        samples.append(Sample(Prompt(f"p{i}", "", tuple(range(2 + i % 3))), completion, "", 0.0, advantage))
    return make_batch(samples)


def gradient_and_metrics(model_dir, **settings):
    """Return the last gradient and the metrics of one batch under these settings."""
    policy = make_policy(model_dir, **settings)
    metrics = Updater(policy, make_config(settings), World()).update(batch())
    return torch.cat([parameter.grad.reshape(-1) for _, parameter in policy.trained_parameters()]), metrics


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_micro_batches_change_only_rounding(model_dir, aggregation):
    """The gradient of five samples at once equals that of twos and of ones.

    Parameters are not compared: where a gradient is zero up to rounding, Adam's first step follows the sign of the
    rounding error.
    """
    settings = {"loss.aggregation": aggregation, "train.warmup_updates": 0, "loss.kl_coefficient": 0.1}
    full_batch, whole_metrics = gradient_and_metrics(model_dir, **{"train.micro_batch": 5}, **settings)
    assert full_batch.abs().max() > 1e-3
    for size in (1, 2):
        split, split_metrics = gradient_and_metrics(model_dir, **{"train.micro_batch": size}, **settings)
        torch.testing.assert_close(split, full_batch, rtol=0, atol=1e-6)
        assert split_metrics == pytest.approx(whole_metrics, rel=1e-5, abs=1e-6)


def test_ratio_is_exactly_one_at_the_first_update(model_dir):
    """Proximal log-probs come from the parameters before the step, for all iterations."""
    _, first = gradient_and_metrics(model_dir, **{"train.micro_batch": 2})
    assert (first["ratio/mean"], first["clip_ratio"], first["kl"]) == (1.0, 0.0, 0.0)
    settings = {"train.iterations": 2, "train.warmup_updates": 0, "train.learning_rate": 0.01}
    _, second = gradient_and_metrics(model_dir, **settings)
    assert second["ratio/mean"] != 1.0
    assert second["clip_ratio"] > 0


def test_non_finite_loss_makes_no_step(model_dir):
    """The parameters and the version stay as they were."""
    policy = make_policy(model_dir)
    before = policy.fingerprint()
    updater = Updater(policy, Config(), World())
    with pytest.raises(NotFiniteError, match=r"update 1: loss nan.*the update was not made"):
        updater.update(batch(advantages=(1.0, math.nan, 0.0)))
    assert updater.updates == 0
    assert policy.fingerprint() == before


# Whole runs.


def test_mini_batches_update_in_sequence(short_run):
    """Two mini-batches make twice as many updates, with ratios to the policy before the first."""
    document, metrics = run_training(short_run(**{"train.mini_batches": 2, "train.steps": 2}))
    assert [entry["policy_version"] for entry in metrics] == [0, 2]
    assert metrics[0]["ratio/mean"] != 1.0
    once, _ = run_training(short_run(**{"output.name": "once", "train.steps": 2}))
    assert once["parameters"] != document["parameters"]


@pytest.mark.parametrize(("aggregation", "same"), [("sequence_sum", True), ("token", False)])
def test_normalisers_agree_for_sequence_sum_and_differ_for_token(short_run, aggregation, same):
    """With equal parts, `mini_batch` and `rollout` give equal updates for `sequence_sum`, and different for `token`."""
    settings = {"train.mini_batches": 2, "loss.aggregation": aggregation, "train.steps": 2}
    documents = [
        run_training(short_run(**settings, **{"output.name": name, "train.mini_batch_normaliser": name}))[0]
        for name in ("mini_batch", "rollout")
    ]
    assert (documents[0]["parameters"] == documents[1]["parameters"]) is same


@pytest.mark.parametrize("scheduler", ["linear", "cosine"])
def test_schedule_matches_transformers(short_run, scheduler):
    """The learning rate agrees at every update, from the warm-up to the last."""
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-2)
    theirs = get_scheduler(scheduler, optimizer, num_warmup_steps=2, num_training_steps=6)
    expected = []
    for _ in range(6):
        optimizer.step()
        theirs.step()
        expected.append(theirs.get_last_lr()[0])
    settings = {"train.warmup_updates": 2, "train.steps": 6, "train.learning_rate": 1e-2}
    _, metrics = run_training(short_run(**{"train.scheduler": scheduler, **settings}))
    assert [entry["lr"] for entry in metrics] == pytest.approx(expected, rel=1e-12, abs=1e-15)
