"""An optimizer step: one normaliser for the window, proximal log-probs, and no step on NaN."""

import math

import pytest
import torch

from grpo_core.learn.batch import make_batch
from grpo_core.learn.policy import Policy
from grpo_core.learn.update import NotFiniteError, Updater, kl_sums
from grpo_core.machine.world import World
from grpo_core.settings import load
from grpo_core.types import Completion, Prompt, Sample


def batch(advantages=(1.0, -0.5, 0.3, -0.8, 0.2)):
    """Completions of different lengths, to prompts of different lengths."""
    samples = []
    for i, advantage in enumerate(advantages):
        ids = tuple((i + j) % 10 for j in range(1 + 2 * i % 5))
        completion = Completion(f"r{i}", ids, (-2.0,) * len(ids), (0,) * len(ids), "length")
        samples.append(Sample(Prompt(f"p{i}", "", tuple(range(2 + i % 3))), completion, "", 0.0, advantage))
    return make_batch(samples)


def updated(model_dir, **settings):
    """The last gradient and the metrics of one batch, under settings given by key."""
    config = load(None, [f"--{key}={value}" for key, value in settings.items()])
    policy = Policy(str(model_dir), config, World())
    metrics = Updater(policy, config, World()).update(batch())
    return torch.cat([parameter.grad.reshape(-1) for _, parameter in policy.trained()]), metrics


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_micro_batches_change_nothing_but_rounding(model_dir, aggregation):
    """The gradient of five samples at once is that of them in twos or one by one.

    Gradients, not parameters: Adam's first step has the same size whatever a gradient's, so where one is zero
    up to rounding, the parameters differ by rounding's sign.
    """
    settings = {"loss.aggregation": aggregation, "train.warmup_updates": 0, "loss.kl_coefficient": 0.1}
    full_batch, whole_metrics = updated(model_dir, **{"train.micro_batch": 5}, **settings)
    assert full_batch.abs().max() > 1e-3
    for size in (1, 2):
        split, split_metrics = updated(model_dir, **{"train.micro_batch": size}, **settings)
        torch.testing.assert_close(split, full_batch, rtol=0, atol=1e-6)
        assert split_metrics == pytest.approx(whole_metrics, rel=1e-5, abs=1e-6)


def test_the_ratio_is_exactly_one_at_the_first_update_and_then_moves(model_dir):
    """Proximal log-probs are those of the parameters the step started with, for all iterations."""
    _, first = updated(model_dir, **{"train.micro_batch": 2})
    assert (first["ratio/mean"], first["clip_ratio"], first["kl"]) == (1.0, 0.0, 0.0)
    _, second = updated(
        model_dir, **{"train.iterations": 2, "train.warmup_updates": 0, "train.learning_rate": 0.01}
    )
    assert second["ratio/mean"] != 1.0
    assert second["clip_ratio"] > 0


def test_the_learning_rate_warms_up(model_dir):
    """Linearly, from the first update on."""
    _, metrics = updated(model_dir, **{"train.warmup_updates": 4, "train.learning_rate": 0.01})
    assert metrics["lr"] == pytest.approx(0.0025)


def test_no_step_is_made_on_a_loss_that_is_not_finite(model_dir):
    """The parameters and the version stay as they were."""
    config = load(None, [])
    policy = Policy(str(model_dir), config, World())
    before = policy.fingerprint()
    updater = Updater(policy, config, World())
    with pytest.raises(NotFiniteError, match=r"update 1: loss nan.*the update was not made"):
        updater.update(batch(advantages=(1.0, math.nan, 0.0)))
    assert updater.updates == 0
    assert policy.fingerprint() == before


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_entropy_threshold_is_the_steps_whatever_the_split(model_dir, size):
    """Tokens of low entropy get no gradient, and which they are does not depend on the micro-batch."""
    settings = {"train.warmup_updates": 0, "loss.entropy_quantile": 0.6}
    full_batch, _ = updated(model_dir, **{"train.micro_batch": 5}, **settings)
    split, _ = updated(model_dir, **{"train.micro_batch": size}, **settings)
    every, _ = updated(model_dir, **{"train.micro_batch": 5, "train.warmup_updates": 0})
    torch.testing.assert_close(split, full_batch, rtol=0, atol=1e-6)
    assert not torch.allclose(full_batch, every, atol=1e-4)


def test_a_kl_in_the_reward_is_that_of_the_closed_form(model_dir):
    """Summed over each completion's tokens, zero while the policy is the reference, and moved by an update."""
    settings = {"loss.kl_coefficient": 0.1, "loss.kl_placement": "reward", "loss.kl_estimator": "k1"}
    config = load(None, [f"--{key}={value}" for key, value in settings.items()])
    policy = Policy(str(model_dir), config, World())
    updater = Updater(policy, config, World())
    assert kl_sums(batch(), policy, config, World()) == [0.0] * 5
    before = policy.logprobs(batch(), 1.0)[0].detach()
    updater.update(batch())
    after = policy.logprobs(batch(), 1.0)[0].detach()
    expected = (after - before).mul(batch().mask_BT).sum(1)
    torch.testing.assert_close(
        torch.tensor(kl_sums(batch(), policy, config, World())), expected, atol=1e-6, rtol=0
    )
    assert expected.abs().max() > 1e-4
