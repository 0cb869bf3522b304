"""Stories: played, described, saved; and the search for them, on an engine made of one number."""

import json

import pytest

from repro.base import BrokenInvariantError
from repro.fuzz import stories
from repro.fuzz.search import Rounds
from repro.fuzz.stories import Ending, Story
from tests.repro.toy_counter import BrokenActions, CounterActions

UP, DOWN = {"do": "raise", "by": 1}, {"do": "lower"}
SMALL = Ending("invariant", "small", "3 is above two")


def rounds(make=CounterActions):
    """A search that has found nothing yet."""
    return Rounds(make)


def test_a_story_is_described_up_to_its_end():
    """Numbered calls with what each does, the state after it, and what the last one ends with."""
    lines, done, finding = stories.play(CounterActions(high=True), [UP, UP, UP])
    assert lines == [
        "1. raise(by=1): The number is raised. [number: 2]",
        "2. raise(by=1): The number is raised.",
        "=> broken invariant: small (3 is above two)",
    ]
    assert done == [UP, UP]
    assert finding == SMALL


def test_a_step_that_cannot_be_done_is_left_out():
    """A story from another release may hold one."""
    lines, done, finding = stories.play(CounterActions(), [{"do": "fly"}, UP])
    assert lines == [
        "1. (fly: can't be done here)",
        "2. raise(by=1): The number is raised. [number: 1]",
        "=> nothing is wrong",
    ]
    assert (done, finding) == ([UP], None)


def test_a_fault_of_the_harness_is_no_finding():
    """It passes through, when played and when searched."""
    with pytest.raises(ZeroDivisionError):
        stories.play(BrokenActions(), [{"do": "fault"}])
    with pytest.raises(ZeroDivisionError):
        rounds(BrokenActions).play_round(seed=0)


def test_a_story_survives_its_file(tmp_path):
    """All of it."""
    story = Story({"high": True}, [UP, UP], SMALL, {"vllm": "1"}, seed=3, cpu_s=0.5)
    stories.save(story, tmp_path / "story.json")
    assert stories.load(tmp_path / "story.json") == story
    assert json.loads((tmp_path / "story.json").read_text())["schema"] == stories.SCHEMA


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "can't be read"),
        ("[]", "not a story"),
        ('{"schema": "grpo-doctor.story.v1"}', "not a story"),
        ('{"schema": "grpo-doctor.story.v1", "setup": {}, "steps": [{}]}', "needs its name"),
    ],
)
def test_a_file_that_holds_no_story_is_refused(tmp_path, text, message):
    """In a sentence."""
    path = tmp_path / "story.json"
    path.write_text(text)
    with pytest.raises(stories.StoryError, match=message):
        stories.load(path)


def test_a_search_finds_each_failure_once_and_shortens_it():
    """From nothing; the same seed gives the same story; a finding that is known is not found again."""
    searched = rounds()
    stories_found = [searched.play_round(seed) for seed in range(3)]
    assert stories_found[0] == rounds().play_round(0)
    assert {story.finding.text: len(story.steps) for story in stories_found[:2]} == {
        "small": 1,
        "positive": 1,
    }
    assert stories_found[2] is None
    assert searched.played > 100


def test_findings_are_identified_without_their_line():
    """A statement that moved in its file is the same finding."""
    near_end, far_end = (
        Ending("assertion", "assert a", path="vllm/a.py", line=line, function="f") for line in (1, 2)
    )
    assert near_end.key == far_end.key
    assert near_end.describe() == "vllm/a.py:1 in f: assert a"
    assert stories.find_ending(BrokenInvariantError("small", "x")).key != near_end.key
