"""Completions that are empty, repetitive, garbled or have a next turn are faults, unless few are (`check_texts`)."""

import random

import pytest

from diagnostics.audit.recorded.completion_texts import check_texts
from diagnostics.audit.recorded.run_data import Recording, RunArtifacts, Sample
from diagnostics.audit.results import FAULT

WORDS = "we first add both numbers then divide the sum by seven and check that"
GARBLED = "的 href zens 了 umn 、是 append 和 bek ikh 12 是 strt 的 ation 了 ivity 和 ulp 的 iar 是 ucky"
TURN = "The answer is 4.<|im_end|>\n<|im_start|>user\nWhat is 3+3?"


def ordinary(generator):
    """Return an ordinary completion."""
    return " ".join(generator.choices(WORDS.split(), k=120)) + f" = {generator.random()}"


def find_faults(change, prompt="What is 2+2?"):
    """Return the faults in 40 steps of 16 completions; `change` may return another text."""
    generator = random.Random(0)
    rows = []
    for number in range(640):
        step, text = 1 + number // 16, ordinary(generator)
        changed = change(step, number)
        rows.append(Sample(step, prompt, text if changed is None else changed, float(number % 2)))
    results = check_texts(RunArtifacts((Recording("step.jsonl", tuple(rows)),)))
    return [result for result in results if result.outcome == FAULT]


def fault_messages(*arguments, **options):
    """Return the message of each fault by its family."""
    return {result.family: result.message for result in find_faults(*arguments, **options)}


@pytest.mark.parametrize(
    ("start", "placeholder"), [("hf_" + "aB3dE5gH7j" * 3, "<secret>"), ("/home/adalovelace/m", "<user>")]
)  # fmt: skip
def test_example_is_redacted_before_the_text_is_cut(start, placeholder):
    """The quoted end of the completion begins within the secret, or within the user's name."""
    quoted = find_faults(lambda *_: f"{start} {TURN:<145}")[0].evidence[0].text
    assert placeholder in quoted
    assert "lovelace" not in quoted


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("texts/empty", " \n"), ("texts/next_turn", TURN), ("texts/next_turn", "4\nuser\nWhat is 3+3?"),
        ("texts/repetition", "The answer is 828. " * 60), ("texts/repetition", "!" * 256),
        ("texts/mixed_scripts", GARBLED),
    ],
)  # fmt: skip
def test_bad_texts_are_named_with_share_and_first_step(family, text):
    messages = fault_messages(lambda step, number: text if step >= 21 and number % 2 else None)
    assert list(messages) == [family]
    assert messages[family].startswith("50% of completions")
    assert "since step 21" in messages[family]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{}</tool_call>\nuser\n<tool_response>4</tool_response>\nassistant\n4",
        "设 x = 5 , 则 y = 7 , 所以 x + y = 12 , 因此 答案 是 12 , 即 z = 12 , 故 选 B",
        "The answer is 4.<|im_end|>\n",
        "A: Hello!\nUser: Hi.\nA: How are you?",
        "0 0 0 0 0 0 0 1\n" * 60,
        "".join(f"{number} | {number * number} | {number**3}\n" for number in range(100)),
    ],
    ids=["tool turns", "Chinese", "end token at the end", "dialogue", "grid", "a table"],
)
def test_ordinary_texts_pass(text):
    assert fault_messages(lambda *_: text, prompt="求 x + y") == {}


def test_few_bad_texts_pass():
    assert fault_messages(lambda _step, number: "" if number % 20 == 0 else None) == {}
