"""Reward functions are called right, and wrong ones are named."""

import numpy as np
import pytest
import torch

from grpo_core.rewards import RewardError, letters_in_place, score

PROMPTS, COMPLETIONS, COLUMNS = ["abc>", "abd>"], ["abc", "xyz"], {"answer": ["abc", "abd"]}


def test_the_shipped_reward_is_the_share_of_letters_in_place():
    """Missing and superfluous letters cost alike; nothing at all is zero."""
    found = score(letters_in_place, ["abc>"] * 5, ["abc", "ab", "abcab", "", "cab"], {"answer": ["abc"] * 5})
    assert found == [1.0, 2 / 3, 3 / 5, 0.0, 0.0]


def test_columns_reach_the_function_by_name():
    """Each as a list, aligned with the prompts."""
    seen = {}

    def spy(prompts, completions, **columns):
        seen.update(columns, prompts=prompts, completions=completions)
        return [0, True]

    assert score(spy, PROMPTS, COMPLETIONS, COLUMNS) == [0.0, 1.0]
    assert seen == {"answer": ["abc", "abd"], "prompts": PROMPTS, "completions": COMPLETIONS}


def test_numbers_of_numpy_and_torch_are_numbers():
    """They come out as Python floats."""
    found = score(
        lambda prompts, completions, **_: [np.float32(0.5), torch.tensor(1.0)], PROMPTS, COMPLETIONS, {}
    )
    assert found == [0.5, 1.0]
    assert [type(value) for value in found] == [float, float]


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ([1.0], "returned 1 rewards for 2 completions"),
        ([1.0, float("nan")], "returned nan for sample 1, the completion 'xyz' to the prompt 'abd>'"),
        ([float("inf"), 0.0], "returned inf for sample 0"),
        ([0.0, None], "returned None for sample 1"),
        ([0.0, "1"], "returned '1' for sample 1"),
        (None, "raised TypeError"),
    ],
)
def test_what_is_no_reward_is_refused_by_name(returned, says):
    """The message names the function, the sample and the value."""

    def broken(prompts, completions, **columns):
        return returned

    with pytest.raises(RewardError, match="reward function broken") as caught:
        score(broken, PROMPTS, COMPLETIONS, COLUMNS)
    assert says in str(caught.value)


def test_a_reward_function_that_raises_is_named():
    """With the error it raised."""

    def careless(prompts, completions, **columns):
        return [1 / 0]

    with pytest.raises(RewardError, match="careless raised ZeroDivisionError: division by zero"):
        score(careless, PROMPTS, COMPLETIONS, COLUMNS)
