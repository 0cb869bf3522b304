"""Reward functions are loaded, called with the right arguments and summed; invalid functions and rewards are named."""

import asyncio
import sys

import numpy as np
import pytest
import torch

from grpo_core.config import Config, ConfigError, DataConfig, RewardConfig, SamplingConfig
from grpo_core.tasks.rewards import RewardError, RewardSet, build_rewards
from grpo_core.types import Completion, Prompt
from tests.case_files import each_case, read_cases
from tests.grpo_core.conftest import run_training

CASES = read_cases(__file__, "unknown_functions.yaml")


def batch(texts, **columns):
    """Return arguments for `score`: prompts, completions and texts; each column is a list, aligned with the texts."""
    prompts, completions = [], []
    for place, text in enumerate(texts):
        row = {key: values[place] for key, values in columns.items()}
        prompts.append(Prompt(f"p{place}", f"prompt {place}", (1,), row))
        ids = (7,) * len(text)
        completions.append(Completion(f"r{place}", ids, (-1.0,) * len(ids), (0,) * len(ids), "stop"))
    return prompts, completions, texts


def score_function(function, texts, **columns):
    """Score with one function; return its accepted results."""
    return by_function(RewardSet({"it": function}, (1.0,)).score(*batch(texts, **columns)))["it"]


def totals(scores):
    """Return the total rewards."""
    return [total for total, _ in scores]


def by_function(rewards):
    """Return rewards by function, one list each."""
    return {name: [scores[name] for _, scores in rewards] for name in rewards[0][1]}


def reward_settings(tokens=8, data="", **reward):
    """Return settings with these reward options."""
    sampling = SamplingConfig(max_tokens=tokens)
    return Config(reward=RewardConfig(**reward), sampling=sampling, data=DataConfig(path=data))


# Calls of a function.


def test_function_gets_the_arguments_it_names():
    """Arguments are passed by name; a parameter of another name keeps its default."""
    received = {}

    def spy(completions, answer, prompts=None, absent="default"):
        received.update(completions=completions, answer=answer, prompts=prompts, absent=absent)
        return [0, True]

    assert score_function(spy, ["a", "b"], answer=["x", "y"], level=[1, 2]) == [0.0, 1.0]
    expected = {"completions": ["a", "b"], "answer": ["x", "y"], "prompts": ["prompt 0", "prompt 1"]}
    assert received == {**expected, "absent": "default"}


def test_kwargs_function_gets_every_column():
    """Columns that a row lacks are None."""
    received = {}

    def spy(prompts, completions, **columns):
        received.update(columns)
        return [0.0] * len(prompts)

    prompts, completions, texts = batch(["a", "b"], answer=["x", "y"])
    prompts[1] = Prompt("p1", "prompt 1", (1,), {"answer": "y", "level": 3})
    RewardSet({"spy": spy}, (1.0,)).score(prompts, completions, texts)
    assert received == {"answer": ["x", "y"], "level": [None, 3]}


def test_missing_column_is_a_configuration_error():
    """The message names the function, the column, and the existing columns."""

    def judge(completions, solution):
        raise AssertionError

    message = "^reward function judge needs a column solution, found answer, prompts, completions$"
    with pytest.raises(ConfigError, match=message):
        RewardSet({"judge": judge}, (1.0,)).score(*batch(["a"], answer=["x"]))


def test_functions_can_not_change_each_others_columns():
    """A function that changes its lists does not change those of the next function."""

    def vandal(completions, answer):
        answer.clear()
        return [1.0] * len(completions)

    def reader(completions, answer):
        return [float(len(answer))] * len(completions)

    rewards = RewardSet({"vandal": vandal, "reader": reader}, (1.0, 1.0)).score(*batch(["a"], answer=["x"]))
    assert by_function(rewards)["reader"] == [1.0]


# Use of the rewards.


def test_total_is_weighted_and_skips_none():
    """None is not zero; scores by function are unweighted Python floats."""
    functions = {
        "first": lambda completions: [np.float32(1), None, torch.tensor(3.0)],
        "second": lambda completions: [10.0, 20.0, None],
    }
    rewards = RewardSet(functions, (0.5, -2.0)).score(*batch(["a", "b", "c"]))
    assert totals(rewards) == [0.5 - 20.0, -40.0, 1.5]
    assert by_function(rewards) == {"first": [1.0, None, 3.0], "second": [10.0, 20.0, None]}


def test_sample_without_any_reward_is_an_error():
    """The overlong penalty alone does not count as a reward."""
    silent = RewardSet({"a": lambda completions: [1.0, None]}, (1.0,), overlong=lambda tokens: -1.0)
    with pytest.raises(RewardError, match=r"a: None has a reward for sample 1 \(request r1\)"):
        silent.score(*batch(["x", "y"]))


# Refusals.

SAMPLE_1 = "for sample 1 (request r1), the completion 'xyz' to the prompt 'prompt 1'"
SAMPLE_1 += "; a reward is a finite number"


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0], "returned 1 rewards for 2 completions"), (None, "returned None rewards for 2 completions"),
        ([1.0, float("nan")], f"returned nan {SAMPLE_1}"),
        ([1.0, float("-inf")], f"returned -inf {SAMPLE_1}"),
        ([1.0, 10**400], f"returned 1{'0' * 400} {SAMPLE_1}"), ([0.0, "1"], f"returned '1' {SAMPLE_1}"),
        ([0.0, 1j], f"returned 1j {SAMPLE_1}"), ([0.0, [1.0]], f"returned [1.0] {SAMPLE_1}"),
        (torch.ones(2, 2), "returned tensor([1., 1.]) for sample 0 (request r0)"),
        (0.5, "raised TypeError: 'float' object is not iterable"),
    ],
)  # fmt: skip
def test_invalid_rewards_are_refused_by_name(returned, message):
    """The message has the function and the value, count or error, for an invalid value also the sample and request."""
    with pytest.raises(RewardError, match=r"^reward function it ") as caught:
        score_function(lambda completions: returned, ["abc", "xyz"])
    assert message in str(caught.value)


def test_reward_error_names_function_file_and_line():
    """An exception becomes an error with function, file and line; `sys.exit` becomes an error, too."""

    def careless(completions):
        return [1 / float(text) for text in completions]

    def leaves(completions):
        sys.exit("no key")

    line = careless.__code__.co_firstlineno + 1
    with pytest.raises(RewardError, match=r"it raised ZeroDivisionError: .*division by zero") as caught:
        score_function(careless, ["1", "0"])
    assert f"({__file__}, line {line})" in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(RewardError, match=r"reward function it raised SystemExit: no key"):
        score_function(leaves, ["a"])


# Settings.


def test_default_is_the_shipped_reward():
    """The default reward is the share of letters in place, unweighted."""
    rewards = build_rewards(Config()).score(*batch(["abc", "ab"], answer=["abc", "abc"]))
    assert totals(rewards) == [1.0, 2 / 3]
    assert by_function(rewards) == {"letters_in_place": [1.0, 2 / 3]}


def test_functions_weights_and_overlong_penalty_combine():
    """The penalty counts tokens and has a separate column; weights do not apply to it."""
    penalty = {"overlong_buffer": 4, "overlong_penalty": 0.5}
    config = reward_settings(functions=("exact", "letters_in_place"), weights=(2.0, 1.0), **penalty)
    rewards = build_rewards(config).score(*batch(["abcd", "abcdef", "abcdefgh"], answer=["abcd"] * 3))
    assert totals(rewards) == [3.0, 2 / 3 - 0.25, 0.0]
    letters = [1.0, 2 / 3, 0.5]
    expected = {"exact": [1.0, 0.0, 0.0], "letters_in_place": letters, "overlong": [0.0, -0.25, -0.5]}
    assert by_function(rewards) == expected


def test_functions_from_user_files(tmp_path):
    """Each file runs once as a separate module, so files of the same name do not conflict."""
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "random.py").write_text(
            "from dataclasses import dataclass\nimport random\n@dataclass\nclass Held:\n    x: 'int'\n"
            f"runs = [0]\nruns[0] += 1\ndef first{value}(completions):\n"
            f"    return [Held({value}).x + random.Random(0).random() * 0] * len(completions)\n"
            "def count(completions):\n    runs[0] += 1\n    return [runs[0]] * len(completions)\n"
        )
    names = ("a/random.py:first1", "a/random.py:count", "b/random.py:first2")
    specs = tuple(f"{tmp_path}/{name}" for name in names)
    rewards = build_rewards(reward_settings(functions=specs)).score(*batch(["x"]))
    values = {"random.py:first1": [1.0], "random.py:count": [2.0], "random.py:first2": [2.0]}
    assert by_function(rewards) == values


@each_case(CASES["functions"])
def test_unknown_function_is_a_configuration_error(tmp_path, spec, message):
    """The message has the requested name, and the existing ones or the error of the file."""
    functions = "def correct(completions): ...\ndef short(completions): ...\n"
    (tmp_path / "mine.py").write_text(f"LIMIT = 3\n{functions}")
    (tmp_path / "wrong.py").write_text("import math\ndef judge(\n")
    (tmp_path / "exits.py").write_text("raise SystemExit(3)")
    with pytest.raises(ConfigError) as caught:
        build_rewards(reward_settings(functions=(spec.format(tmp=tmp_path),)))
    assert str(caught.value).startswith(f"reward.functions: {spec.format(tmp=tmp_path)!r}: ")
    assert message.format(tmp=tmp_path) in str(caught.value)


def test_duplicate_function_is_refused():
    """Two functions of one name are refused because their metrics would have the same name."""
    with pytest.raises(ConfigError, match=r"reward\.functions: 'exact' is named twice"):
        build_rewards(reward_settings(functions=("exact", "exact")))


def test_user_data_needs_a_reward_function():
    """The shipped task's reward does not fit other tasks."""
    with pytest.raises(ConfigError, match=r"reward\.functions: expected one or more"):
        build_rewards(reward_settings(data="rows.jsonl"))


# Functions written for TRL.


def score_trl_function(text, *messages, step=0, function=None):
    """Return the score of one TRL reward function on a completion of a conversation."""
    prompts, completions, texts = batch([text])
    prompts = [Prompt("p", "rendered", (1,), {"answer": "x"}, list(messages))]
    rewards = RewardSet({"it": function}, (1.0,), convention="trl", steps=9)
    return rewards.score(prompts, completions, texts, step=step)[0][0]


def test_trl_function_gets_messages_ids_and_state():
    """With the convention `trl`, a function with `**kwargs` gets messages, ids and state."""
    received = {}

    def spy(prompts, completions, **kwargs):
        received.update(kwargs, prompts=prompts, completions=completions)
        return [1.0]

    user = {"role": "user", "content": "hi"}
    assert score_trl_function("yes", user, step=4, function=spy) == 1.0
    assert received["prompts"] == [[user]]
    assert received["completions"] == [[{"role": "assistant", "content": "yes"}]]
    assert (received["completion_ids"], received["answer"]) == ([[7, 7, 7]], ["x"])
    assert (received["trainer_state"].global_step, received["trainer_state"].max_steps) == (4, 9)


def test_text_convention_passes_ids_and_state_only_if_named():
    """With the convention `text`, `**kwargs` gets the prompts and columns; ids and state must be named."""
    received = {}

    def by_name(completion_ids, trainer_state):
        return [float(len(ids) + trainer_state.global_step) for ids in completion_ids]

    def everything(completions, **columns):
        received.update(columns)
        return [0.0] * len(completions)

    assert score_function(by_name, ["a", "bc"]) == [1.0, 2.0]
    score_function(everything, ["a"], answer=["x"])
    assert set(received) == {"prompts", "answer"}


def test_async_functions_run_concurrently():
    """As with TRL's `asyncio.gather`, two functions can wait for each other; an error names its function."""
    together = asyncio.Barrier(2)

    async def waits(completions):
        await asyncio.wait_for(together.wait(), 60)
        return [float(len(text)) for text in completions]

    async def fails(completions):
        raise LookupError("no b")

    def plain(completions):
        return [0.5] * len(completions)

    functions = {"first": waits, "plain": plain, "second": waits}
    rewards = by_function(RewardSet(functions, (1.0,) * 3).score(*batch(["a", "bc"])))
    assert rewards == {"first": [1.0, 2.0], "plain": [0.5, 0.5], "second": [1.0, 2.0]}
    with pytest.raises(RewardError, match=r"it raised LookupError: no b \(.*test_rewards.py, line \d+\)"):
        score_function(fails, ["a"])


def test_trl_convention_strips_special_tokens(short_run, tmp_path):
    """With TRL's convention, completions have no special tokens; a run passes ids, state and TRL's log functions."""
    (tmp_path / "own.py").write_text(
        "def clean(completions, **kwargs):\n"
        "    assert kwargs['completion_ids'] and kwargs['trainer_state'].max_steps == 1\n"
        "    assert not any('<' in text for text in completions)\n"
        "    kwargs['log_metric']('texts', len(completions))\n"
        "    kwargs['log_extra'](column='notes', values=completions)\n"
        "    return [float(len(text)) for text in completions]\n"
    )
    function = {"reward.functions": f"{tmp_path}/own.py:clean", "reward.convention": "trl"}
    document, _ = run_training(short_run(**function, **{"train.steps": 1}))
    assert document["error"] is None
