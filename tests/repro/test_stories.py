"""Stories (sequences of engine calls) are played, described, saved and searched for, on a toy engine."""

import json

import pytest

from repro.fuzz import stories
from repro.fuzz.search import FuzzRounds
from repro.fuzz.stories import Ending, EngineActions, StepKind, Story
from repro.registry import BrokenInvariantError

UP, DOWN = {"do": "raise", "by": 1}, {"do": "lower"}
SMALL = Ending("invariant", "small", "3 is above two")


class CounterActions(EngineActions):
    """Actions on an engine whose state is a number; it fails above two, and fails differently below zero."""

    settings = ("high",)
    length = 4
    steps = {  # noqa: RUF012
        "raise": StepKind(lambda _: True, by=(0, 3)),
        "lower": StepKind(lambda _: True),
    }

    def __init__(self, high=False):
        super().__init__()
        self.number = int(high)

    def state(self):
        return f"number: {self.number}"

    def do_raise(self, by):
        """Raise the number."""
        self.number += by
        if self.number > 2:
            raise BrokenInvariantError("small", f"{self.number} is above two")

    def do_lower(self):
        """Lower the number."""
        self.number -= 1
        if self.number < 0:
            raise BrokenInvariantError("positive", f"{self.number} is below zero")


class BrokenActions(CounterActions):
    """Actions whose harness has a bug."""

    steps = {"fault": StepKind(lambda _: True)}  # noqa: RUF012

    def do_fault(self):
        """Fail in the harness."""
        raise ZeroDivisionError


def test_story_description():
    """Playing gives numbered lines with the state after each step, the steps that were played, and the finding."""
    lines, done, finding = stories.play(CounterActions(high=True), [UP, UP, UP])
    assert lines == [
        "1. raise(by=1): Raise the number. [number: 2]",
        "2. raise(by=1): Raise the number.",
        "=> broken invariant: small (3 is above two)",
    ]
    assert done == [UP, UP]
    assert finding == SMALL


def test_impossible_step_is_skipped():
    """A step that this engine does not have is skipped, because a story may come from another release."""
    lines, done, finding = stories.play(CounterActions(), [{"do": "fly"}, UP])
    assert lines == [
        "1. (fly: can't be done here)",
        "2. raise(by=1): Raise the number. [number: 1]",
        "=> nothing is wrong",
    ]
    assert (done, finding) == ([UP], None)


def test_harness_error_is_no_finding():
    """An exception of the harness is raised by playing and by searching, and is not a finding."""
    with pytest.raises(ZeroDivisionError):
        stories.play(BrokenActions(), [{"do": "fault"}])
    with pytest.raises(ZeroDivisionError):
        FuzzRounds(BrokenActions).play_round(seed=0)


def test_story_round_trips_through_its_file(tmp_path):
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
def test_invalid_story_file_is_refused(tmp_path, text, message):
    path = tmp_path / "story.json"
    path.write_text(text)
    with pytest.raises(stories.StoryError, match=message):
        stories.load(path)


def test_search_finds_and_shrinks_each_failure_once():
    """A search returns the shortest story of each failure once, and the same seed gives the same story."""
    rounds = FuzzRounds(CounterActions)
    stories_found = [rounds.play_round(seed) for seed in range(3)]
    assert stories_found[0] == FuzzRounds(CounterActions).play_round(0)
    assert {story.finding.text: len(story.steps) for story in stories_found[:2]} == {
        "small": 1,
        "positive": 1,
    }
    assert stories_found[2] is None
    assert rounds.played > 100


def test_finding_identity_ignores_line_numbers():
    near_end, far_end = (
        Ending("assertion", "assert a", path="vllm/a.py", line=line, function="f") for line in (1, 2)
    )
    assert near_end.key == far_end.key
    assert near_end.describe() == "vllm/a.py:1 in f: assert a"
    assert stories.find_ending(BrokenInvariantError("small", "x")).key != near_end.key
