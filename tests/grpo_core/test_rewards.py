"""Reward functions are called right, and wrong ones are named."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

from grpo_core.config import ConfigError
from grpo_core.reward_functions import letters_in_place, math_accuracy
from grpo_core.rewards import RewardError, build_rewards, score
from grpo_core.settings import load
from grpo_core.types import Completion, Prompt

PROMPTS, COMPLETIONS, COLUMNS = ["abc>", "abd>"], ["abc", "xyz"], {"answer": ["abc", "abd"]}


def test_the_shipped_reward_is_the_share_of_letters_in_place():
    """Missing and superfluous letters cost alike; nothing at all is zero."""
    found = score(
        "letters", letters_in_place, ["abc>"] * 5, ["abc", "ab", "abcab", "", "cab"], {"answer": ["abc"] * 5}
    )
    assert found == [1.0, 2 / 3, 3 / 5, 0.0, 0.0]


def test_columns_reach_the_function_by_name():
    """Each as a list, aligned with the prompts."""
    seen = {}

    def spy(prompts, completions, **columns):
        seen.update(columns, prompts=prompts, completions=completions)
        return [0, True]

    assert score("spy", spy, PROMPTS, COMPLETIONS, COLUMNS) == [0.0, 1.0]
    assert seen == {"answer": ["abc", "abd"], "prompts": PROMPTS, "completions": COMPLETIONS}


def test_numbers_of_numpy_and_torch_are_numbers():
    """They come out as Python floats."""
    found = score("numbers", lambda *_: [np.float32(0.5), torch.tensor(1.0)], PROMPTS, COMPLETIONS, {})
    assert found == [0.5, 1.0]
    assert [type(value) for value in found] == [float, float]


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ([1.0], "returned 1 rewards for 2 completions"),
        ([1.0, float("nan")], "returned nan for sample 1, the completion 'xyz' to the prompt 'abd>'"),
        ([float("inf"), 0.0], "returned inf for sample 0"),
        ([0.0, "1"], "returned '1' for sample 1"),
        (None, "raised TypeError"),
    ],
)
def test_what_is_no_reward_is_refused_by_name(returned, says):
    """The message names the function, the sample and the value."""

    def broken(prompts, completions, **columns):
        return returned

    with pytest.raises(RewardError, match="reward function broken") as caught:
        score("broken", broken, PROMPTS, COMPLETIONS, COLUMNS)
    assert says in str(caught.value)


def test_a_reward_function_that_raises_is_named():
    """With the error it raised."""

    def careless(prompts, completions, **columns):
        return [1 / 0]

    with pytest.raises(RewardError, match="careless raised ZeroDivisionError: division by zero"):
        score("careless", careless, PROMPTS, COMPLETIONS, COLUMNS)


def test_the_sample_that_makes_it_raise_is_found():
    """One in a thousand, by a few more calls; and a function that raises on the whole batch alone is said to."""
    calls = []

    def careless(prompts, completions, answer):
        calls.append(len(completions))
        return [1.0 / len(text) for text in completions]

    texts = ["a"] * 613 + [""] + ["a"] * 386
    with pytest.raises(
        RewardError, match=r"careless raised ZeroDivisionError.* on sample 613: .* to the prompt 'p613'"
    ):
        score("careless", careless, [f"p{i}" for i in range(1000)], texts, {"answer": texts})
    assert len(calls) < 15

    def moody(prompts, completions):
        if len(completions) > 1:
            raise ValueError("too many")
        return [0.0]

    with pytest.raises(RewardError, match="on a batch, though on no sample of it alone"):
        score("moody", moody, PROMPTS, COMPLETIONS, {})


def rewards(tmp_path, source="", **settings):
    """The functions of a file `mine.py` and settings given by key."""
    (tmp_path / "mine.py").write_text(source)
    wanted = {
        key: str(value).replace("mine.py", str(tmp_path / "mine.py")) for key, value in settings.items()
    }
    return build_rewards(load(None, [f"--{key}={value}" for key, value in wanted.items()]))


def samples(texts, lengths=None, **columns):
    """Prompts, completions and texts."""
    prompts = [
        Prompt(f"p{i}", f"q{i}", (1,), {k: v[i] for k, v in columns.items()}) for i in range(len(texts))
    ]
    lengths = lengths or [1] * len(texts)
    completions = [
        Completion(f"r{i}", (1,) * n, (-1.0,) * n, (0,) * n, "stop") for i, n in enumerate(lengths)
    ]
    return prompts, completions, texts


MINE = """
def long(prompts, completions, **columns):
    return [len(text) for text in completions]

def picky(prompts, completions, level):
    return [None if n < 2 else n / 10 for n in level]
"""


@pytest.mark.parametrize("threads", [1, 4])
def test_several_functions_add_up_with_weights(tmp_path, threads):
    """One that has nothing to say of a sample counts as nothing there; how many threads call them changes nothing."""
    found = rewards(
        tmp_path,
        MINE,
        **{
            "reward.functions": "mine.py:long,mine.py:picky,exact",
            "reward.weights": "0.5,2,1",
            "reward.threads": threads,
        },
    ).score(*samples(["ab", "abc", "x"], level=[1, 2, 3], answer=["ab", "b", "x"]))
    assert found.by_function == {"long": [2.0, 3.0, 1.0], "picky": [None, 0.2, 0.3], "exact": [1.0, 0.0, 1.0]}
    assert found.totals == pytest.approx([0.5 * 2 + 1, 0.5 * 3 + 2 * 0.2, 0.5 + 2 * 0.3 + 1])


def test_a_sample_of_which_nobody_has_anything_to_say(tmp_path):
    """Is no zero."""
    with pytest.raises(
        RewardError, match=r"no reward function has anything to say of sample 0, the completion 'a'"
    ):
        rewards(tmp_path, MINE, **{"reward.functions": "mine.py:picky"}).score(*samples(["a"], level=[1]))


def test_the_soft_overlong_penalty_is_taken_off(tmp_path):
    """DAPO, equation 13: nothing, then linear over the buffer, then all of it at full length."""
    found = rewards(
        tmp_path,
        MINE,
        **{
            "reward.functions": "exact",
            "reward.overlong_buffer": 4,
            "sampling.max_tokens": 10,
            "reward.overlong_penalty": 2,
        },
    ).score(*samples(["a"] * 4, [5, 6, 8, 10], answer=["a"] * 4))
    assert found.totals == [1.0, 1.0, 0.0, -1.0]


@pytest.mark.parametrize(
    ("functions", "says"),
    [
        (
            "nothing",
            "'nothing': expected file.py:function or one of letters, exact, math, format, repetition",
        ),
        ("mine.py:absent", "mine.py has no function absent; it has long, picky"),
        ("/nowhere/other.py:long", "there is no file /nowhere/other.py"),
        ("exact,exact", "two have the same name"),
    ],
)
def test_a_function_that_is_not_there(tmp_path, functions, says):
    """One line: key, name, what there is."""
    with pytest.raises(ConfigError) as caught:
        rewards(tmp_path, MINE, **{"reward.functions": functions})
    assert says in str(caught.value)


def test_a_file_that_does_not_run(tmp_path):
    """Its own error, and where."""
    with pytest.raises(ConfigError, match=r"mine.py: ZeroDivisionError: division by zero"):
        rewards(tmp_path, "1 / 0", **{"reward.functions": "mine.py:long"})


def test_a_column_that_the_data_does_not_have(tmp_path):
    """Names the function, the column and those that there are."""
    with pytest.raises(
        ConfigError, match="reward function picky needs the column 'level'; the data has 'answer'"
    ):
        rewards(tmp_path, MINE, **{"reward.functions": "mine.py:picky"}).score(*samples(["a"], answer=["a"]))


ANSWERS = ["1/2", "\\frac{3}{4}", "$x^2+2x+1$", "5"]
GIVEN = ["It is $0.5$.", "so we get $\\boxed{0.75}$", "$(x+1)^2$", "it's six, $6$"]


def test_mathematics_is_compared_by_value_in_any_thread():
    """math-verify's time limit is an alarm, which only the main thread has: elsewhere it must not turn into zeros."""
    expected = [1.0, 1.0, 1.0, 0.0]
    assert math_accuracy([""] * 4, GIVEN, ANSWERS) == expected
    with ThreadPoolExecutor(2) as pool:
        assert pool.submit(math_accuracy, [""] * 4, GIVEN, ANSWERS).result() == expected


def test_an_answer_that_cannot_be_read_is_no_zero():
    """No completion could ever be right."""
    with pytest.raises(RewardError, match=r"sample 1 has the answer '', which math-verify can't read"):
        math_accuracy(["", ""], ["1", "2"], ["1", ""])


@pytest.fixture
def classifier(model_dir, tmp_path):
    """A tiny random sequence classifier with one output, beside the tiny model's tokenizer."""
    config = LlamaConfig.from_pretrained(model_dir, num_labels=1)
    torch.manual_seed(0)
    LlamaForSequenceClassification(config).save_pretrained(tmp_path / "classifier")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "classifier" / name).write_bytes((model_dir / name).read_bytes())
    return tmp_path / "classifier"


def test_a_reward_model_scores_each_text_as_alone(tmp_path, classifier):
    """Whatever its neighbours and their padding."""
    texts = ["a", "abc", "jihgfedcba" * 3, "", "bb"] * 5
    prompts, completions, _ = samples(texts)
    prompts = [Prompt(p.id, "cab>", p.ids, p.columns) for p in prompts]
    found = rewards(tmp_path, **{"reward.model": classifier}).score(prompts, completions, texts)
    model = LlamaForSequenceClassification.from_pretrained(classifier).eval()
    letters = "abcdefghij>"
    for text, total in zip(texts, found.totals, strict=True):
        ids = torch.tensor([[letters.index(letter) for letter in "cab>" + text]])
        with torch.no_grad():
            assert total == pytest.approx(float(model(ids).logits[0, 0]), abs=1e-6)
    assert len({round(total, 5) for total in found.totals}) == 5


def test_a_reward_model_refuses_what_it_cannot_read(tmp_path, classifier):
    """A text that would have to be cut, and a folder that holds something else."""
    with pytest.raises(
        RewardError, match=r"sample 1 has 303 tokens with its prompt, the reward model reads 256"
    ):
        rewards(tmp_path, **{"reward.model": classifier}).score(*samples(["a", "a" * 301]))
    with pytest.raises(ConfigError, match="not a sequence classifier"):
        rewards(tmp_path, **{"reward.model": tmp_path})
