"""Losses, masks, advantages and updates beside the core's; against the peers' own code: test_loss_against_*."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from grpo_core import run
from grpo_core.config import REJECTIONS, SURROGATES, ConfigError, LossConfig
from grpo_core.learn.advantages import step_advantages
from grpo_core.learn.logprobs import chunked_logprobs, logprobs_and_entropies
from grpo_core.learn.losses import SURROGATES as FORMS
from grpo_core.learn.losses import Streams, policy_loss, token_weights
from grpo_core.settings import load

LENGTHS = (5, 3, 1, 4)


def quiet(_: dict) -> None:
    """No progress."""


def tensors(seed: int = 0):
    """Log-probs of four completions, and where they count."""
    generator = torch.Generator().manual_seed(seed)
    noise = lambda scale: torch.randn(4, 5, generator=generator, dtype=torch.float64) * scale  # noqa: E731
    current, mask = noise(0.5) - 1.5, torch.arange(5)[None] < torch.tensor(LENGTHS)[:, None]
    streams = Streams(current + noise(0.3), current + noise(0.3))
    return current.requires_grad_(), streams, torch.tensor([1.0, -0.5, 0.3, -1.2], dtype=torch.float64), mask


def loss_of(options, seed: int = 0, advantages=None, entropy=None):
    """Value and gradient."""
    current, streams, of_samples, mask = tensors(seed)
    weights = token_weights(mask, options.aggregation, 6).double()
    used = of_samples if advantages is None else advantages
    loss = policy_loss(current, streams, used, mask, weights, options, entropy_BT=entropy).value
    loss.backward()
    return loss.detach(), current.grad


@pytest.mark.parametrize("surrogate", sorted(SURROGATES))
def test_the_gradient_is_that_of_the_value_where_nothing_is_detached(surrogate):
    """Beyond a completion's end nothing has an influence, be it NaN; and every form has a gradient."""
    options = LossConfig(surrogate=surrogate, aggregation="sequence", correction="none", cov_share=0.2)
    value, gradient = loss_of(options)
    current, streams, advantages, mask = tensors()
    nan = torch.full_like(current, torch.nan)
    spoilt = [
        torch.where(mask, stream, nan) for stream in (current.detach(), streams.behaviour, streams.proximal)
    ]
    again = spoilt[0].requires_grad_()
    weights = token_weights(mask, "sequence", 6).double()
    policy_loss(again, Streams(*spoilt[1:]), advantages, mask, weights, options).value.backward()
    assert torch.equal(again.grad, gradient)
    assert torch.isfinite(value)
    assert gradient[mask].abs().sum() > 0
    assert not gradient[~mask].any()


def test_every_form_has_a_name_and_every_name_a_form():
    """The setting and the functions are the same list."""
    assert set(FORMS) == set(SURROGATES)


def test_a_sequences_ratio_with_each_tokens_gradient():
    """The value of `sequence`; the gradient is spread by each token's own weight, not by their mean."""
    plain = {"aggregation": "sequence", "correction": "none", "clip_low": 1.0, "clip_high": 1e9}
    value, gradient = loss_of(LossConfig(ratio="sequence", **plain))
    token_value, by_token = loss_of(LossConfig(ratio="sequence_token", **plain))
    assert torch.allclose(value, token_value, rtol=1e-14)
    assert torch.allclose(gradient.sum(1), by_token.sum(1), rtol=1e-12)
    bounded = {**plain, "correction": "truncate", "correction_cap": 1.1}
    gradients = [loss_of(LossConfig(ratio=ratio, **bounded))[1] for ratio in ("sequence", "sequence_token")]
    assert (gradients[0] - gradients[1]).abs().max() > 0.01  # token weights distinguish the two: verl's gspo


def test_an_advantage_a_token():
    """One a sample, written out, is the same; another at one token moves that token's gradient alone."""
    options = LossConfig(correction="none", clip_low=1.0, clip_high=1e9)
    value, gradient = loss_of(options)
    _, _, of_samples, _ = tensors()
    spread = of_samples[:, None].repeat(1, 5)
    assert torch.equal(loss_of(options, advantages=spread)[0], value)
    spread[0, 1] = 7.0
    changed = (loss_of(options, advantages=spread)[1] != gradient).nonzero().tolist()
    assert changed == [[0, 1]]


def test_a_negative_completion_that_is_far_off_policy_is_left_out():
    """A positive one never is; the others keep their weight."""
    options = LossConfig(correction="none", off_policy_limit=1e-9)
    _, gradient = loss_of(options)
    _, streams, advantages, mask = tensors()
    current = tensors()[0].detach()
    distance = ((streams.behaviour - current) * mask).sum(1)
    masked = (advantages < 0) & (distance > 0)
    assert masked.any()
    _, unmasked = loss_of(LossConfig(correction="none"))
    assert not gradient[masked].any()
    assert torch.equal(gradient[~masked], unmasked[~masked])


def test_the_entropy_has_the_gradient_of_the_naive_one():
    """Gradients of hidden states and output layer agree; the log-probs equal those of the plain head bit for bit."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((7, 4), (11, 4))]
    ids = torch.randint(11, (7,), generator=generator)
    weights = torch.randn(2, 7, generator=generator, dtype=torch.float64)

    def gradients(head):
        hidden, weight = (value.clone().requires_grad_() for value in inputs)
        logprobs, entropies = head(hidden, weight)
        (logprobs * weights[0] + entropies * weights[1]).sum().backward()
        return logprobs.detach(), entropies.detach(), hidden.grad, weight.grad

    def naive(hidden, weight):
        everything = torch.log_softmax(hidden @ weight.T / 0.7, -1)
        return everything[torch.arange(7), ids], -(everything.exp() * everything).sum(-1)

    def chunked(hidden, weight):
        return logprobs_and_entropies(hidden, weight, ids, temperature=0.7, chunk=3)

    for ours, theirs in zip(gradients(chunked), gradients(naive), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-14)
    plain = chunked_logprobs(*inputs, ids, temperature=0.7, chunk=3)
    assert torch.equal(chunked(*inputs)[0], plain[0])
    assert torch.equal(chunked(*inputs)[1], plain[1])


def test_opo_weighs_the_mean_by_lengths():
    """A long completion has more weight in its group."""
    options = LossConfig(advantage_baseline="length", advantage_scale="none")
    assert step_advantages([[0.0, 1.0]], [[3, 1]], options) == [[-0.25, 0.75]]
    assert step_advantages([[0.3, 0.3, 0.3]], [[3, 1, 9]], options) == [[0.0, 0.0, 0.0]]


def test_whitened_advantages_have_no_mean_over_tokens():
    """And deviate by one: long completions count more often."""
    options = LossConfig(advantage_baseline="none", advantage_scale="none", advantage_whiten="tokens")
    lengths = [[3, 1], [2, 5]]
    actual = step_advantages([[0.0, 1.0], [0.5, 2.0]], lengths, options)
    tokens = [
        value
        for row, counts in zip(actual, lengths, strict=True)
        for value, n in zip(row, counts, strict=True)
        for _ in range(n)
    ]
    assert abs(sum(tokens)) < 1e-12
    assert math.isclose(sum(value**2 for value in tokens) / (len(tokens) - 1), 1, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["loss.surrogate=kl_cov", "train.micro_batch=16"], "they must be one micro-batch"),
        (["loss.surrogate=moved"], "set loss.correction = 'none'"),
        (["loss.surrogate=vespo", "loss.correction_level=sequence"], "set loss.correction_level = 'token'"),
        (["loss.surrogate=geo_mean"], "set loss.aggregation = 'sequence'"),
        (["loss.reject=token_k1", "loss.reject_low=3"], "the lower bound must not be above the upper"),
        (["train.mini_batches=999"], "fewer completions in a step than mini-batches"),
        (["train.beta2=1.0"], "expected less than 1"),
        (["loss.reject=seq_max_k1"], "expected one of 'none', 'token_k1'"),
        (["rollout.mode=async", "train.mini_batches=2"], "set max_staleness to at least that"),
    ],
)
def test_what_contradicts_is_refused(settings, says):
    """The error names the contradicting settings."""
    with pytest.raises(ConfigError) as caught:
        load(None, [f"--{setting}" for setting in settings])
    assert says in str(caught.value)


# Whole runs.


def trained(short_run, name: str, **settings):
    """The document, and the metrics."""
    document = run.train(short_run(**{"output.name": name, "train.steps": 3, **settings}), quiet)
    assert document["outcome"] == "ok", document["error"]
    lines = Path(document["metrics"]).read_text().splitlines()
    return document["parameters"], [json.loads(line) for line in lines]


def test_mini_batches_update_one_after_the_other(short_run):
    """Twice as many updates, whose ratios are to the policy before the first; micro-batches change rounding alone."""
    actual, metrics = trained(short_run, "two", **{"train.mini_batches": 2})
    assert [entry["policy_version"] for entry in metrics] == [0, 2, 4]
    assert metrics[0]["ratio/mean"] != 1.0
    again, _ = trained(short_run, "again", **{"train.mini_batches": 2})
    assert again == actual
    assert trained(short_run, "one")[0] != actual


def test_a_mini_batch_has_its_own_normaliser_or_the_rollouts(short_run):
    """With equal weights and equal parts, both normalisers give the same result."""
    equal = {"train.mini_batches": 2, "loss.aggregation": "sequence_sum"}
    per_mini_batch, _ = trained(short_run, "own", **equal)
    per_rollout, _ = trained(short_run, "whole", **equal, **{"train.mini_batch_normaliser": "rollout"})
    assert per_mini_batch == per_rollout
    by_token = [
        trained(
            short_run,
            f"token {normaliser}",
            **{"train.mini_batches": 2, "train.mini_batch_normaliser": normaliser},
        )[0]
        for normaliser in ("mini_batch", "rollout")
    ]
    assert by_token[0] != by_token[1]


@pytest.mark.parametrize("scheduler", ["linear", "cosine"])
def test_a_schedule_is_that_of_transformers(short_run, scheduler):
    """Its rate at every update, from the warm-up to the last."""
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-2)
    theirs = get_scheduler(scheduler, optimizer, num_warmup_steps=2, num_training_steps=6)
    expected = []
    for _ in range(6):
        optimizer.step()
        theirs.step()
        expected.append(theirs.get_last_lr()[0])
    settings = {
        "train.scheduler": scheduler,
        "train.warmup_updates": 2,
        "train.steps": 6,
        "train.learning_rate": 1e-2,
    }
    _, metrics = trained(short_run, scheduler, **settings)
    assert [entry["lr"] for entry in metrics] == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_resumed_it_is_the_same_run(short_run):
    """Mini-batches, a schedule and Adam's constants: bit for bit, as of one that was never interrupted."""
    settings = {
        "train.mini_batches": 2,
        "train.scheduler": "cosine",
        "train.beta2": 0.99,
        "train.warmup_updates": 1,
    }
    settings |= {"loss.reject": "token_k3", "loss.reject_high": 0.5, "loss.entropy_coefficient": 0.01}

    def stops(entry: dict) -> None:
        if entry["step"] == 2:
            raise KeyboardInterrupt

    uninterrupted, _ = trained(short_run, "whole", **settings, **{"train.steps": 4})
    config = short_run(**{"output.name": "parts", "train.steps": 4, **settings})
    assert run.train(config, stops)["outcome"] == "interrupted"
    document = run.train(config, quiet, resume=True)
    assert (document["steps"], document["parameters"]) == (4, uninterrupted)


@pytest.mark.parametrize("surrogate", sorted(set(FORMS) - {"clip", "cispo", "sapo"}))
def test_every_form_trains(short_run, surrogate):
    """Whole steps, with what its rules ask for."""
    needs = {"moved": {"loss.correction": "none"}, "geo_mean": {"loss.aggregation": "sequence"}}
    settings = {"train.steps": 2, "loss.surrogate": surrogate, **needs.get(surrogate, {})}
    _, metrics = trained(short_run, surrogate, **settings)
    assert all(math.isfinite(entry["loss"]) and entry["grad_norm"] > 0 for entry in metrics)


def test_what_is_rejected_counts_in_no_normaliser(short_run):
    """With a bound that all are within nothing changes; the core's engine and trainer differ by rounding alone."""
    plain, _ = trained(short_run, "plain")
    for option in ("seq_sum_k1", "token_k3"):
        assert option in REJECTIONS
        assert trained(short_run, option, **{"loss.reject": option})[0] == plain
