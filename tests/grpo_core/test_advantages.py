"""Advantages against closed forms."""

import numpy as np
import pytest

from grpo_core.advantages import group_advantages


@pytest.mark.parametrize("ddof", [0, 1])
def test_centred_and_scaled_as_numpy_does(ddof):
    """(reward - mean) / (deviation + epsilon), for each group by itself."""
    rewards = np.random.default_rng(0).normal(size=(5, 8))
    expected = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=ddof, keepdims=True) + 1e-4)
    found = group_advantages(rewards.tolist(), ddof=ddof, epsilon=1e-4)
    np.testing.assert_allclose(found.values, expected, rtol=1e-12)


def test_a_known_group():
    """One success of four: mean 1/4, deviation 1/2 with n - 1."""
    found = group_advantages([[1.0, 0.0, 0.0, 0.0]], epsilon=0.0)
    np.testing.assert_allclose(found.values, [[1.5, -0.5, -0.5, -0.5]], rtol=1e-15)


def test_without_scale_only_the_mean_is_taken_off():
    """`none` is the centred reward."""
    assert group_advantages([[1.0, 0.5, 0.0]], scale="none").values == ((0.5, 0.0, -0.5),)


def test_equal_rewards_give_exact_zeros_and_are_counted():
    """0.1 three times: their float mean is not 0.1, and must not become a signal."""
    found = group_advantages([[0.1, 0.1, 0.1], [0.0, 1.0, 0.0]], epsilon=1e-9)
    assert found.values[0] == (0.0, 0.0, 0.0)
    assert found.zero_variance_groups == 1


def test_a_group_of_one_carries_no_signal():
    """Nothing to compare to: zero, not 0/0."""
    assert group_advantages([[0.7]], ddof=1).values == ((0.0,),)
