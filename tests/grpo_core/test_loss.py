"""The loss against closed forms in float64, and its gradient against finite differences."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.config import LossConfig
from grpo_core.loss import Streams, importance_weights, kl_estimate, policy_loss, ratios, token_weights


@pytest.fixture(autouse=True)
def _float64():
    """Closed forms are compared in float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


PLAIN = LossConfig(correction="none")


def one_token(current, proximal, advantage, options=PLAIN, behaviour=None, reference=None) -> torch.Tensor:
    """The loss of a batch of one token."""

    def cell(value):
        return torch.tensor([[value]])

    streams = Streams(
        cell(proximal if behaviour is None else behaviour),
        cell(proximal),
        None if reference is None else cell(reference),
    )
    mask = torch.tensor([[True]])
    return policy_loss(
        cell(current), streams, torch.tensor([advantage]), mask, token_weights(mask, "token", 1), options
    ).value


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, -2.0),
        (1.1, 2.0, -2.2),
        (1.5, 2.0, -2.4),  # clipped above: 1.2 * 2
        (0.5, 2.0, -1.0),  # not clipped below where that would help
        (0.5, -2.0, 1.6),  # clipped below: 0.8 * -2
        (1.5, -2.0, 3.0),  # not clipped above where that would hide a fault
    ],
)
def test_clipped_surrogate(ratio, advantage, expected):
    """-min(ratio * A, clip(ratio) * A), on both sides of both clips."""
    torch.testing.assert_close(
        one_token(math.log(ratio), 0.0, advantage), torch.tensor(expected), rtol=1e-12, atol=0
    )


def test_clip_sides_are_separate():
    """Clip-higher widens the upper side alone."""
    options = LossConfig(clip_high=0.4, correction="none")
    torch.testing.assert_close(
        one_token(math.log(1.5), 0.0, 1.0, options), torch.tensor(-1.4), rtol=1e-12, atol=0
    )
    torch.testing.assert_close(
        one_token(math.log(0.5), 0.0, -1.0, options), torch.tensor(0.8), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("k1", 0.3), ("k2", 0.045), ("k3", math.exp(-0.3) + 0.3 - 1)],
)
def test_kl_estimators(estimator, expected):
    """With log-ratio reference - current = -0.3."""
    found = kl_estimate(torch.tensor(-1.0), torch.tensor(-1.3), estimator)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-12, atol=0)
    options = LossConfig(kl_coefficient=0.5, kl_estimator=estimator, correction="none")
    loss = one_token(-1.0, -1.0, 2.0, options, reference=-1.3)
    torch.testing.assert_close(loss, torch.tensor(-2.0 + 0.5 * expected), rtol=1e-12, atol=0)


def test_k1_and_k3_estimate_the_kl():
    """Their expectation under the current policy is KL(current || reference), summed exactly."""
    current = torch.log_softmax(torch.tensor([0.3, -1.0, 2.0]), -1)
    reference = torch.log_softmax(torch.tensor([1.0, 0.0, 0.5]), -1)
    exact = (current.exp() * (current - reference)).sum()
    for estimator in ("k1", "k3"):
        expected = (current.exp() * kl_estimate(current, reference, estimator)).sum()
        torch.testing.assert_close(expected, exact, rtol=1e-12, atol=0)


def test_the_correction_is_proximal_over_behaviour_and_truncated():
    """The engine sampled with half the trainer's probability: weight 2, or the cap; and it has no gradient."""
    options = LossConfig(correction="truncate", correction_cap=3.0)
    loss = one_token(math.log(0.5), math.log(0.5), 1.0, options, behaviour=math.log(0.25))
    torch.testing.assert_close(loss, torch.tensor(-2.0), rtol=1e-12, atol=0)
    proximal = torch.tensor([[0.0]], requires_grad=True)
    weights = importance_weights(proximal, torch.tensor([[-5.0]]), torch.tensor([[True]]), options)
    assert (weights.item(), weights.requires_grad) == (3.0, False)


def test_behaviour_has_no_say_without_correction():
    """Three streams: what is clipped is the ratio to the proximal one, whatever the engine said."""
    assert one_token(-1.0, -1.0, 1.0, behaviour=-9.0) == one_token(-1.0, -1.0, 1.0)


def test_the_ratio_is_one_where_current_is_proximal():
    """Then the loss is -advantage, and the gradient that of -advantage * log-prob."""
    current = torch.randn(3, 4, requires_grad=True)
    mask = torch.ones(3, 4, dtype=torch.bool)
    advantages = torch.tensor([1.0, -2.0, 0.5])
    weights = token_weights(mask, "token", 4)
    loss = policy_loss(current, Streams(current.detach(), current.detach()), advantages, mask, weights, PLAIN)
    loss.value.backward()
    assert (loss.ratio_sum, loss.clipped) == (12.0, 0)
    torch.testing.assert_close(current.grad, -advantages[:, None].expand(3, 4) / 12, rtol=1e-12, atol=0)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_gradient_against_finite_differences(estimator):
    """Clip, correction and KL together, at ratios away from the clip's edges."""
    generator = torch.Generator().manual_seed(0)
    current = torch.randn(2, 3, generator=generator).requires_grad_()
    streams = Streams(*(torch.randn(2, 3, generator=generator) for _ in range(3)))
    mask = torch.tensor([[True, True, False], [True, False, False]])
    weights = token_weights(mask, "token", 3)
    options = LossConfig(kl_coefficient=0.1, kl_estimator=estimator)
    advantages = torch.tensor([1.0, -1.0])
    assert torch.autograd.gradcheck(
        lambda values: policy_loss(values, streams, advantages, mask, weights, options).value, (current,)
    )


def test_token_weights():
    """Lengths 1 and 3 of at most 4: all tokens equal, all sequences equal, or all places equal."""
    mask = torch.tensor([[True, False, False], [True, True, True]])
    assert token_weights(mask, "token", 4).tolist() == [[0.25, 0, 0], [0.25, 0.25, 0.25]]
    torch.testing.assert_close(
        token_weights(mask, "sequence", 4), torch.tensor([[1 / 2, 0, 0], [1 / 6, 1 / 6, 1 / 6]])
    )
    assert token_weights(mask, "constant", 4).tolist() == [[0.125, 0, 0], [0.125, 0.125, 0.125]]


def test_what_stands_behind_the_end_has_no_influence():
    """NaN and infinity in masked places reach neither the loss nor the gradient; a masked row gives zero."""
    bad = float("nan")
    current = torch.tensor([[0.0, bad], [bad, float("inf")]], requires_grad=True)
    other = torch.tensor([[0.0, float("-inf")], [bad, bad]])
    mask = torch.tensor([[True, False], [False, False]])
    options = LossConfig(kl_coefficient=0.1)
    loss = policy_loss(
        current,
        Streams(other, other, other),
        torch.tensor([2.0, 3.0]),
        mask,
        token_weights(mask, "token", 2),
        options,
    )
    loss.value.backward()
    assert loss.value.item() == -2.0
    assert current.grad.tolist() == [[-2.0, 0.0], [0.0, 0.0]]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=6), st.data())
def test_micro_batches_change_nothing(lengths, data):
    """Wherever a batch is split, the parts' losses add up to the whole one's."""
    generator = torch.Generator().manual_seed(sum(lengths))
    width = max(lengths)
    mask = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    current, proximal, behaviour = (torch.randn(len(lengths), width, generator=generator) for _ in range(3))
    advantages = torch.randn(len(lengths), generator=generator)
    aggregation = data.draw(st.sampled_from(["token", "sequence", "constant"]))
    split = data.draw(st.integers(1, len(lengths) - 1))
    weights = token_weights(mask, aggregation, 5)

    def part(rows: slice) -> torch.Tensor:
        streams = Streams(behaviour[rows], proximal[rows])
        return policy_loss(
            current[rows], streams, advantages[rows], mask[rows], weights[rows], LossConfig()
        ).value

    whole = part(slice(None))
    torch.testing.assert_close(part(slice(split)) + part(slice(split, None)), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "ratio", "advantage", "expected"),
    [
        ({"dual_clip": 3.0}, 5.0, -2.0, 6.0),  # at most 3 |A|
        ({"dual_clip": 3.0}, 2.0, -2.0, 4.0),  # below the bound nothing changes
        ({"ratio_cap": 1.5}, 5.0, -2.0, 3.0),  # the free branch is capped
        ({"ratio_cap": 1.1}, 1.15, 2.0, -2.2),
        ({"surrogate": "cispo", "clip_high": 1.0}, 5.0, 2.0, -2.0 * 2.0 * math.log(5.0)),
        ({"surrogate": "sapo"}, 1.0, 2.0, -4.0),  # at ratio 1 the gate is 2 / temperature
        ({"log_ratio_limit": 0.1}, 5.0, -2.0, 2.0 * math.exp(0.1)),
    ],
)
def test_surrogates(options, ratio, advantage, expected):
    """Each switch at a point where it decides the value."""
    options = LossConfig(correction="none", **options)
    found = one_token(math.log(ratio), 0.0, advantage, options)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-12, atol=0)


def test_a_sequences_ratio_is_its_geometric_mean():
    """GSPO: one ratio for all tokens of a sequence; masked tokens do not count."""
    current = torch.tensor([[math.log(1.1), math.log(0.9), 7.0]])
    mask = torch.tensor([[True, True, False]])
    found = ratios(current, torch.zeros(1, 3), mask, LossConfig(ratio="sequence"))
    torch.testing.assert_close(found, torch.tensor([[math.sqrt(1.1 * 0.9)]]), rtol=1e-12, atol=0)


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
    """Weights 2 and 3 with a cap of 2: moved to the bound or dropped, by token or by their product, 6."""
    options = LossConfig(correction=mode, correction_level=level, correction_cap=2.0 + 1e-9)
    behaviour = torch.tensor([[-math.log(2.0), -math.log(3.0)]])
    found = importance_weights(torch.zeros(1, 2), behaviour, torch.tensor([[True, True]]), options)
    torch.testing.assert_close(found, torch.tensor([expected]), rtol=1e-8, atol=0)
