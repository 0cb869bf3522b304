"""Advantages equal closed forms for every baseline and scale, including groups without a deviation.

They do not depend on the order of samples and groups.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.learn.advantages import group_advantages


@pytest.mark.parametrize(
    ("baseline", "expected"), [("group", 0.0), ("leave_one_out", 0.0), ("batch", 0.7 - 0.35), ("none", 0.7)]
)
@pytest.mark.parametrize("scale", ["group", "leave_one_out", "none"])
@pytest.mark.parametrize("ddof", [0, 1])
def test_group_of_one_is_not_scaled(baseline, expected, scale, ddof):
    """Except with the `batch` scale, the advantage is the reward minus its baseline."""
    actual = group_advantages([[0.7], [0.1, 0.2, 0.4]], baseline=baseline, scale=scale, ddof=ddof)
    np.testing.assert_allclose(actual[0], [expected], rtol=1e-15)


BASELINES = SCALES = ("group", "leave_one_out", "batch", "none")


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("ddof", [0, 1])
def test_every_baseline_and_scale_matches_numpy(baseline, scale, ddof):
    rewards = np.random.default_rng(1).normal(size=(3, 4))
    expected = np.zeros_like(rewards)
    for (g, i), reward in np.ndenumerate(rewards):
        peers = {"group": rewards[g], "leave_one_out": np.delete(rewards[g], i), "batch": rewards.flatten()}
        mean = 0.0 if baseline == "none" else peers[baseline].mean()
        divisor = 1.0 if scale == "none" else peers[scale].std(ddof=ddof) + 0.01
        expected[g, i] = (reward - mean) / divisor
    actual = group_advantages(rewards.tolist(), baseline=baseline, scale=scale, ddof=ddof, epsilon=0.01)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_leave_one_out_std_of_equal_rewards_does_not_scale():
    """An advantage is not divided if the other rewards are equal, as in NeMo-RL; epsilon would dominate the step."""
    options = {"baseline": "leave_one_out", "scale": "leave_one_out", "epsilon": 1e-6}
    actual = group_advantages([[1.0, 0.0, 0.0, 0.0]], **options)
    third, deviation = 1 / 3, (2 / 9 / 2 + 1 / 9 + 1 / 9) ** 0.5
    np.testing.assert_allclose(actual, [[1.0] + [-third / (deviation + 1e-6)] * 3], rtol=1e-12)


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("scale", SCALES)
def test_equal_rewards_in_batch_are_not_scaled(baseline, scale):
    """Equal rewards give exactly zero with every baseline, and exactly the reward without one."""
    actual = group_advantages([[0.1] * 3] * 3, baseline=baseline, scale=scale, epsilon=1e-12)
    assert actual == ((0.1 if baseline == "none" else 0.0,) * 3,) * 3


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.floats(-2, 2), min_size=3, max_size=3), min_size=2, max_size=4),
    st.sampled_from(BASELINES),
    st.sampled_from(SCALES),
    st.randoms(use_true_random=False),
)
def test_advantages_do_not_depend_on_order(rewards, baseline, scale, random):
    """A sample's advantage is bit-identical however samples and groups are ordered."""
    advantages = group_advantages(rewards, baseline=baseline, scale=scale)
    groups = random.sample(range(len(rewards)), len(rewards))
    orders = [random.sample(range(3), 3) for _ in groups]
    moved = [[rewards[g][i] for i in order] for g, order in zip(groups, orders, strict=True)]
    expected = tuple(tuple(advantages[g][i] for i in order) for g, order in zip(groups, orders, strict=True))
    assert group_advantages(moved, baseline=baseline, scale=scale) == expected
