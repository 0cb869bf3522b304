"""Stories: played, told, saved, made shorter; and the machines that look for them, on an engine made of one number."""

import json

import pytest

from repro.base import BrokenInvariantError
from repro.search import machine, stories
from repro.search.stories import Ending, Story
from tests.repro.toy_counter import BrokenMachine, CounterActions, CounterMachine

UP, DOWN = {"do": "raise", "by": 1}, {"do": "lower"}
SMALL = Ending("invariant", "small", "3 is above two")


def search(seed=0, known=(), drawn=CounterMachine):
    """One round, from nothing."""
    notebook = machine.Notebook(known=set(known))
    machine.search(drawn, notebook, seed=seed, examples=100, length=12)
    return notebook


def test_a_story_is_told_up_to_its_end():
    """Numbered sentences, the state after each, and what the last one ends with."""
    lines, finding = stories.play(CounterActions, Story("toy", {"start": 1}, [UP, UP, UP]))
    assert lines == [
        "1. raise the number. [2]",
        "2. raise the number.",
        "=> broken invariant: small (3 is above two)",
    ]
    assert finding == SMALL


def test_a_step_that_cannot_be_done_is_told_and_left_out():
    """A story from another release may hold one."""
    lines, finding = stories.play(CounterActions, Story("toy", {}, [{"do": "fly"}, UP]))
    assert lines == ["1. (fly: can't be done here)", "2. raise the number. [1]", "=> nothing is wrong"]
    assert finding is None


def test_a_fault_of_the_harness_is_no_finding():
    """It passes through, when played and when searched."""
    with pytest.raises(ZeroDivisionError):
        stories.play(CounterActions, Story("toy", {}, [{"do": "break"}]))
    with pytest.raises(ZeroDivisionError):
        search(drawn=BrokenMachine)


def test_a_story_survives_its_file(tmp_path):
    """All of it."""
    story = Story("toy", {"start": 1}, [UP, UP], SMALL, {"vllm": "1"}, seed=3, cpu_s=0.5)
    stories.save(story, tmp_path / "story.json")
    assert stories.load(tmp_path / "story.json") == story


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "can't be read"),
        ("[]", "not a story"),
        ('{"schema": "grpo-doctor.story.v1"}', "not a story"),
        ('{"schema": "grpo-doctor.story.v1", "engine": "v0", "setup": {}, "steps": [{}]}', "needs its name"),
    ],
)
def test_a_file_that_holds_no_story_is_refused(tmp_path, text, message):
    """In a sentence."""
    path = tmp_path / "story.json"
    path.write_text(text)
    with pytest.raises(stories.StoryError, match=message):
        stories.load(path)


def test_what_a_finding_does_without_is_left_out():
    """Steps one by one and by two, and numbers that can be smaller."""
    long = Story("toy", {"start": 0}, [UP, DOWN, UP, {"do": "raise", "by": 5}], SMALL)
    assert stories.shorten(CounterActions, long).steps == [{"do": "raise", "by": 3}]


def test_a_search_finds_and_shortens():
    """From nothing; the same seed gives the same story."""
    for seed in range(3):
        notebook = search(seed)
        assert notebook.story == search(seed).story
        assert stories.play(CounterActions, notebook.story)[1] == notebook.story.finding
        assert len(stories.shorten(CounterActions, notebook.story).steps) <= 3
        assert notebook.steps >= len(notebook.story.steps)


def test_what_is_known_is_not_found_again():
    """Each round finds another, until there is none."""
    first = search().story.finding
    second = search(known={first.key}).story.finding
    assert {first.text, second.text} == {"small", "positive"}
    last = search(known={first.key, second.key})
    assert last.story is None
    assert last.examples >= 100


def test_findings_are_told_apart_without_their_line():
    """A statement that moved in its file is the same finding."""
    here, there = (
        Ending("assertion", "assert a", path="vllm/a.py", line=line, function="f") for line in (1, 2)
    )
    assert here.key == there.key
    assert here.describe() == "vllm/a.py:1 in f: assert a"
    assert stories.found(BrokenInvariantError("small", "x")).key != here.key


def test_a_document_says_what_it_is():
    """So that nobody reads another version's."""
    assert json.loads(json.dumps(Story("toy", {}, []).to_json()))["schema"] == stories.SCHEMA
