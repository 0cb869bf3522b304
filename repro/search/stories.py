"""Stories: what was done to a scheduler, step by step, and what came of it. Told, saved, and played again.

A story is data: the engine's settings and a list of steps, each a name with arguments. Playing one needs nothing but
the engine; Hypothesis is needed only to look for new ones.
"""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

from repro import judge
from repro.base import BrokenInvariantError

Step = dict[str, Any]
SCHEMA = "grpo-doctor.story.v1"
_LARGEST = 16 << 20


class StoryError(Exception):
    """Raised when a file holds no story that can be played; the text says what is wrong."""


class Actions(Protocol):
    """What can be done to an engine, by name. Its constructor takes the settings of a story."""

    about: ClassVar[str]  # how small everything is
    tally: Counter[str]
    progress: str  # where the last step is, if it is made of several

    def can(self, name: str) -> bool:
        """Whether the step makes sense now."""

    def say(self, step: Step) -> str:
        """Tells in a sentence what the step is about to do."""

    def do(self, step: Step) -> None:
        """Does it. Upstream's exceptions and broken invariants pass through."""

    def state(self) -> str:
        """Tells in a line where the requests are."""

    @staticmethod
    def rewrites(steps: list[Step]) -> list[list[Step]]:
        """Returns other tellings, easier to believe or shorter, that may end alike."""


@dataclass(frozen=True)
class Ending:
    """What a story ends with.

    Args:
        kind: `assertion` and `exception` come out of upstream's code; `invariant` out of our checks.
        text: the statement that failed, the exception, or the invariant's name.
        detail: what else is known, in a line.
        path: upstream's file as in its wheel; "" for an invariant.
        line: in that file.
        function: in which it stands.
        code: of the known issue, "" if none is known.
    """

    kind: str
    text: str
    detail: str = ""
    path: str = ""
    line: int = 0
    function: str = ""
    code: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Tells findings apart; the same in every release, so without the line."""
        return (self.kind, self.text, self.path, self.function)

    def describe(self) -> str:
        """Says it in a line, with its place."""
        place = f"{self.path}:{self.line} in {self.function}: " if self.path else "broken invariant: "
        return place + self.text + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True)
class Story:
    """Settings, steps, and what they end with.

    Args:
        engine: `v0` or `v1`.
        setup: arguments of the engine's settings.
        steps: in order; `do` names the step, the rest are its arguments.
        finding: what the last step ends with; None where all went well.
        versions: what was installed when it was found.
        seed: of the search that found it.
        cpu_s: CPU seconds from the search's start to the shortened story.
    """

    engine: str
    setup: dict[str, Any]
    steps: list[Step]
    finding: Ending | None = None
    versions: dict[str, str] = field(default_factory=dict)
    seed: int | None = None
    cpu_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns it as it stands in a file."""
        return {"schema": SCHEMA} | asdict(self)

    @staticmethod
    def from_json(found: Any) -> Story:
        """Reads what `to_json` gave.

        Raises:
            StoryError: it is something else.
        """
        if not isinstance(found, dict) or found.get("schema") != SCHEMA:
            raise StoryError(f"not a story: its schema is not {SCHEMA!r}")
        fields = {name: value for name, value in found.items() if name != "schema"}
        try:
            finding = Ending(**fields.pop("finding")) if fields.get("finding") else None
            story = Story(**(fields | {"finding": finding}))
        except TypeError as error:
            raise StoryError(f"not a story: {error}") from error
        if not isinstance(story.steps, list) or not isinstance(story.setup, dict):
            raise StoryError("not a story: expected a list of steps, and a table of settings")
        if not all(isinstance(step, dict) and "do" in step for step in story.steps):
            raise StoryError("not a story: each step needs its name, 'do'")
        return story


def _text(path: Path) -> str:
    """A file's text; neither a pipe is waited for, nor more read than a story has."""
    if path.stat().st_size > _LARGEST or not path.is_file():
        raise ValueError(f"expected a file of at most {_LARGEST >> 20} MiB")
    return path.read_text(encoding="utf-8")


def load(path: Path) -> Story:
    """Reads a story's file.

    Raises:
        StoryError: it can't be read, or holds something else.
    """
    try:
        return Story.from_json(json.loads(_text(path)))
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise StoryError(f"{path} can't be read: {error}") from error


def save(story: Story, path: Path) -> None:
    """Writes a story's file."""
    path.write_text(json.dumps(story.to_json(), indent=1) + "\n", encoding="utf-8")


def found(error: Exception) -> Ending | None:
    """Says what an exception means; None if it comes out of the harness itself."""
    if isinstance(error, BrokenInvariantError):
        return Ending("invariant", error.name, error.detail)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = judge.below_site_packages(frame.filename)
        if "/repro/" in frame.filename or "/hypothesis/" in frame.filename:
            break
        if path is not None:
            return _upstream(error, frame, path)
    return None


def _upstream(error: Exception, frame: traceback.FrameSummary, path: str) -> Ending:
    line = frame.lineno or 0
    if isinstance(error, AssertionError):
        text = judge.statement(frame.filename, line)
        return Ending("assertion", text, str(error), path, line, frame.name, _codes().get(text, ""))
    return Ending("exception", type(error).__name__, str(error).split("\n")[0], path, line, frame.name)


def _codes() -> dict[str, str]:
    from repro.issues import REPROS

    return {repro.assertion: code for code, repro in REPROS.items()}


def play(make: Callable[..., Actions], story: Story) -> tuple[list[str], Ending | None]:
    """Plays a story on a fresh engine.

    Returns:
        Its lines, numbered, up to the step that ends it, and what it ends with.
    """
    actions = make(**story.setup)
    lines: list[str] = []
    for number, step in enumerate(story.steps, 1):
        if not actions.can(step["do"]):
            lines.append(f"{number}. ({step['do']}: can't be done here)")
            continue
        lines.append(f"{number}. {actions.say(step)}")
        try:
            actions.do(step)
        except Exception as error:
            finding = found(error)
            if finding is None:
                raise
            lines[-1] += f" [{actions.progress}]" if actions.progress else ""
            return [*lines, f"=> {finding.describe()}"], finding
        lines[-1] += f" [{actions.state()}]"
    return [*lines, "=> nothing is wrong"], None


def shorten(make: type[Actions], story: Story, *, tries: int = 600) -> Story:
    """Leaves out and makes smaller what the finding does without, until nothing more can go.

    Args:
        make: starts an engine.
        story: with its finding.
        tries: how many other stories to play at most.
    """
    shorter = _Shorter(make, story, tries)
    again = True
    while again:
        before = shorter.story
        shorter.cut()
        shorter.simplify()
        shorter.cut_pairs()
        again = shorter.story != before
    return shorter.story


class _Shorter:
    """The shortest story so far, and how often another may still be tried."""

    def __init__(self, make: type[Actions], story: Story, tries: int) -> None:
        self.story = story
        self._make = make
        self._left = tries

    def cut(self) -> None:
        """Leaves out runs of steps, long ones first."""
        length = max(1, len(self.story.steps) // 2)
        while length:
            start = 0
            while start < len(self.story.steps):
                steps = self.story.steps
                if not self._take(steps[:start] + steps[start + length :]):
                    start += length
            length //= 2

    def cut_pairs(self) -> None:
        """Leaves out two steps that stand apart: one that puts right what the other did."""
        for first in range(len(self.story.steps)):
            for second in range(first + 2, len(self.story.steps)):
                steps = self.story.steps
                self._take([step for index, step in enumerate(steps) if index not in {first, second}])

    def simplify(self) -> None:
        """Turns settings off, tells it otherwise where that will do, and makes numbers smaller."""
        for name, value in self.story.setup.items():
            if value is True:
                self._take(self.story.steps, self.story.setup | {name: False})
        while any(self._take(steps) for steps in self._make.rewrites(self.story.steps)):
            pass
        for index in range(len(self.story.steps)):
            for name in self.story.steps[index]:
                while any(self._take(self._changed(index, name, less)) for less in self._less(index, name)):
                    pass

    def _less(self, index: int, name: str) -> list[int]:
        value = self.story.steps[index][name]
        if isinstance(value, bool) or not isinstance(value, int):
            return [False] if value is True else []
        return [less for less in dict.fromkeys((0, 1, value // 2, value - 1)) if 0 <= less < value]

    def _changed(self, index: int, name: str, value: int) -> list[Step]:
        steps = self.story.steps
        return [*steps[:index], steps[index] | {name: value}, *steps[index + 1 :]]

    def _take(self, steps: list[Step], setup: dict[str, Any] | None = None) -> bool:
        """Plays another story; if it ends with the same finding, it is the one from now on."""
        if self._left == 0:
            return False
        self._left -= 1
        other = replace(self.story, steps=steps, setup=setup or self.story.setup)
        try:
            _, finding = play(self._make, other)
        except Exception:  # noqa: BLE001 - upstream refuses what no caller could ask for, such as no tokens at all
            return False
        if finding is None or self.story.finding is None or finding.key != self.story.finding.key:
            return False
        self.story = replace(other, finding=finding)
        return True
