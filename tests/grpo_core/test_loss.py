"""KL estimators, the ratio's cap and corrections equal closed forms, and masked positions have no influence.

The ratio of equal policies is 1. For random steps and dialects, order, padding and micro-batches change loss and
gradient by rounding only. test_dialects.py compares whole losses and gradients with each project's formula.
"""

import math
from dataclasses import dataclass, replace
from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.config import LossConfig
from grpo_core.learn.advantages import group_advantages
from grpo_core.learn.dialects import DIALECTS
from grpo_core.learn.losses import (
    Streams,
    importance_weights,
    kl_estimate,
    policy_loss,
    ratios,
    token_weights,
)
from tests.grpo_core.test_dialects import far_token_loss

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize(("estimator", "expected"), [("k1", 0.3), ("k2", 0.045)])
def test_kl_estimators(estimator, expected):
    """The loss has the estimate times the coefficient; here reference - current is -0.3."""
    options = LossConfig(kl_coefficient=0.5, kl_estimator=estimator, correction="none")
    loss, _ = far_token_loss(options, reference=-0.3, advantage=2.0)
    assert math.isclose(loss, -2.0 + 0.5 * expected, rel_tol=1e-12)


def test_k1_and_k3_are_unbiased():
    """The exact expectation of each estimator under the current policy is KL(current || reference)."""
    current = torch.log_softmax(torch.tensor([0.3, -1.0, 2.0]), -1)
    reference = torch.log_softmax(torch.tensor([1.0, 0.0, 0.5]), -1)
    exact = (current.exp() * (current - reference)).sum()
    everywhere = torch.ones(3, dtype=torch.bool)
    for estimator in ("k1", "k3"):
        options = LossConfig(kl_estimator=estimator)
        expected = (current.exp() * kl_estimate(current, reference, everywhere, options)).sum()
        torch.testing.assert_close(expected, exact, rtol=1e-12, atol=0)


# Properties of a whole step, from rewards to gradient, in every dialect -------------------------------------------

TOLERANCE = {"float64": 1e-12, "float32": 1e-6}
STREAMS = ("current", "proximal", "behaviour", "reference")


@dataclass(frozen=True)
class Step:
    """Groups of samples. A sample is its reward and the log-probs of each token; no tokens: it was filtered."""

    rewards: list[list[float]]
    samples: list[list[torch.Tensor]]


@st.composite
def steps(draw) -> Step:
    """Draw small steps with ties among rewards, filtered samples and single tokens."""
    groups, size = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    count = {"min_size": groups * size, "max_size": groups * size}
    lengths = draw(st.lists(st.integers(0, 5), **count))
    rewards = draw(st.lists(st.sampled_from([0.0, 0.1, 0.7, 1.0]), **count))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    samples = [
        torch.randn(length, 1, generator=generator, dtype=torch.float64) * 0.5
        - 1.5
        + torch.randn(length, len(STREAMS), generator=generator, dtype=torch.float64) * 0.3
        for length in lengths
    ]
    starts = range(0, groups * size, size)
    return Step([rewards[i : i + size] for i in starts], [samples[i : i + size] for i in starts])


def loss_and_gradients(
    step: Step, options: LossConfig, padding: int = 0, micro_batch: int = 99
) -> tuple[float, list[list]]:
    """Return the loss of a step and the gradient of each sample's log-probs."""
    flat = [sample for group in step.samples for sample in group]
    width = max(1, *map(len, flat)) + padding
    padded = torch.full((len(flat), width, len(STREAMS)), float("nan"))
    for row, sample in zip(padded, flat, strict=True):
        row[: len(sample)] = sample
    current, proximal, behaviour, reference = padded.unbind(-1)
    current = current.clone().requires_grad_()
    mask = torch.arange(width)[None] < torch.tensor([len(sample) for sample in flat])[:, None]
    advantages = torch.tensor([value for group in group_advantages(step.rewards) for value in group])
    weights = token_weights(mask, options.aggregation, 6)
    value = 0.0
    for start in range(0, len(flat), micro_batch):
        rows = slice(start, start + micro_batch)
        streams = Streams(behaviour[rows], proximal[rows], reference[rows])
        part = policy_loss(current[rows], streams, advantages[rows], mask[rows], weights[rows], options)
        part.value.backward()
        value += part.value.item()
        assert all(map(math.isfinite, (part.value.item(), part.kl_sum, part.ratio_sum)))
    assert not current.grad[~mask].any()
    gradients = iter(row[real] for row, real in zip(current.grad, mask, strict=True))
    return value, [[next(gradients) for _ in group] for group in step.samples]


def assert_close(one: tuple, other: tuple, dtype: str) -> None:
    """Check that losses and gradients are equal up to rounding of the summands."""
    size = max(1.0, sum(float(gradient.abs().sum()) for gradient in chain(*one[1])))
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype] * size}
    torch.testing.assert_close(torch.tensor(one[0]), torch.tensor(other[0]), **tolerance)
    for mine, yours in zip(chain(*one[1]), chain(*other[1]), strict=True):
        torch.testing.assert_close(mine, yours, **tolerance)


configurations = st.builds(
    lambda name, estimator: replace(DIALECTS[name].loss, kl_coefficient=0.05, kl_estimator=estimator),
    st.sampled_from(sorted(DIALECTS)),
    st.sampled_from(["k1", "k2", "k3"]),
)
each_precision = pytest.mark.parametrize("dtype", ["float64", "float32"])


@each_precision
@settings(max_examples=40, deadline=None)
@given(step=steps(), options=configurations, random=st.randoms(use_true_random=False))
def test_order_of_samples_and_groups_does_not_matter(dtype, step, options, random):
    torch.set_default_dtype(getattr(torch, dtype))
    value, gradients = loss_and_gradients(step, options)
    size = len(step.rewards[0])
    groups = random.sample(range(len(step.rewards)), len(step.rewards))
    orders = [random.sample(range(size), size) for _ in groups]

    def moved(nested):
        return [[nested[g][i] for i in order] for g, order in zip(groups, orders, strict=True)]

    reordered = loss_and_gradients(Step(moved(step.rewards), moved(step.samples)), options)
    assert_close(reordered, (value, moved(gradients)), dtype)


@each_precision
@settings(max_examples=40, deadline=None)
@given(step=steps(), options=configurations, padding=st.integers(1, 4), micro_batch=st.integers(1, 5))
def test_padding_and_micro_batches_do_not_matter(dtype, step, options, padding, micro_batch):
    """With NaN padding and in micro-batches, loss and gradient of a step are the same up to rounding."""
    torch.set_default_dtype(getattr(torch, dtype))
    split = loss_and_gradients(step, options, padding, micro_batch)
    assert_close(split, loss_and_gradients(step, options), dtype)


@settings(max_examples=40, deadline=None)
@given(step=steps(), options=configurations)
def test_step_of_filtered_samples_has_zero_loss(step, options):
    """The loss is exactly zero, and nothing is NaN."""
    empty = Step(step.rewards, [[sample[:0] for sample in group] for group in step.samples])
    value, gradients = loss_and_gradients(empty, options)
    assert value == 0.0
    assert all(gradient.shape == (0,) for group in gradients for gradient in group)


@each_precision
@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4), options=configurations)
def test_ratio_of_equal_policies_is_exactly_one(dtype, lengths, options):
    """The ratio is exactly 1 per token and per sequence, for random dialects."""
    torch.set_default_dtype(getattr(torch, dtype))
    mask = torch.arange(5)[None] < torch.tensor(lengths)[:, None]
    current = torch.randn(len(lengths), 5)
    assert (ratios(current, current.clone(), mask, options) == 1.0).all()
    streams = Streams(current, current)
    weights = token_weights(mask, options.aggregation, 5)
    loss = policy_loss(current, streams, torch.ones(len(lengths)), mask, weights, options)
    assert (loss.ratio_sum, loss.clipped) == (float(sum(lengths)), 0)


@pytest.mark.parametrize(
    ("cap", "ratio", "advantage", "expected"), [(1.5, 5.0, -2.0, 3.0), (1.1, 1.15, 2.0, -2.2)]
)
def test_ratio_cap(cap, ratio, advantage, expected):
    """The cap limits a ratio that is not clipped; the dialects' surrogates and limits are in test_dialects.py."""
    options = LossConfig(correction="none", ratio_cap=cap)
    loss, _ = far_token_loss(options, current=math.log(ratio), advantage=advantage)
    assert math.isclose(loss, expected, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("level", "mode", "expected"),
    [
        ("token", "truncate", [2.0, 2.0]),
        ("token", "mask", [2.0, 0.0]),
        ("sequence", "truncate", [2.0]),
        ("sequence", "mask", [0.0]),
    ],
)
def test_correction_levels_and_modes(level, mode, expected):
    """Weights 2 and 3 with a cap of 2 are truncated or masked, per token or by their product, 6."""
    options = LossConfig(correction=mode, correction_level=level, correction_cap=2.0 + 1e-9)
    behaviour = torch.tensor([[-math.log(2.0), -math.log(3.0)]])
    actual = importance_weights(torch.zeros(1, 2), behaviour, torch.tensor([[True, True]]), options)
    torch.testing.assert_close(actual, torch.tensor([expected]), rtol=1e-8, atol=0)


def test_sequence_token_ratio():
    """Loss and summed gradient of each sample are those of `sequence`; with weights per token the gradients differ."""
    generator = torch.Generator().manual_seed(0)
    samples = [torch.randn(length, len(STREAMS), generator=generator) * 0.6 - 1.5 for length in (5, 3, 1, 4)]
    step = Step([[1.0, 0.1, 0.7, 0.0]], [samples])
    plain = {"aggregation": "sequence", "correction": "none", "clip_low": 1.0, "clip_high": 1e9}
    value, gradients = loss_and_gradients(step, LossConfig(ratio="sequence", **plain))
    token_value, by_token = loss_and_gradients(step, LossConfig(ratio="sequence_token", **plain))
    assert math.isclose(value, token_value, rel_tol=1e-14)
    for sample, token in zip(gradients[0], by_token[0], strict=True):
        torch.testing.assert_close(sample.sum(), token.sum(), rtol=1e-12, atol=0)
    # Token weights distinguish the two: verl's gspo.
    bounded = {**plain, "correction": "truncate", "correction_cap": 1.1}
    _, gradients = loss_and_gradients(step, LossConfig(ratio="sequence", **bounded))
    _, by_token = loss_and_gradients(step, LossConfig(ratio="sequence_token", **bounded))
    assert (torch.cat(gradients[0]) - torch.cat(by_token[0])).abs().max() > 0.01
