"""Define, play, save and load stories: sequences of calls to a scheduler, with the failure in which they end.

A story is data: the engine's settings and a list of steps, each a name with arguments. `EngineActions` is the base
class of the calls. Playing a story needs only the engine; the search for new stories (`repro.fuzz.search`) needs
Hypothesis.
"""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from grpo_core.safe_io import read_bytes, write_atomically
from repro import judge
from repro.registry import BrokenInvariantError

Step = dict[str, Any]
SCHEMA = "grpo-doctor.story.v1"
# Known issues by the invariant that they break.
KNOWN = {"a pause in mode 'wait' lets what runs end": "SYN002"}
_LARGEST = 16 << 20


class StoryError(Exception):
    """Raised when a file cannot be read or is not a story; the message has the reason."""


class StepKind:
    """The condition and the arguments of a kind of step.

    Args:
        when: Function that returns whether the step is possible in the current state of the `EngineActions`.
        draws: For each argument, the smallest and the largest number (a tuple), or a list of choices.
    """

    def __init__(self, when: Callable[[Any], object], **draws: Sequence[Any]) -> None:
        self.when, self.draws = when, draws


class EngineActions:
    """Base class of an engine's actions; a subclass takes the settings of a story and creates the engine.

    It has a method `do_<name>` for each kind of step; the first line of the method's docstring describes the step.

    Attributes:
        settings: Names of a story's settings, each of which is on or off.
        length: Maximum number of steps in each third of a story, so that a round takes a second or two.
        steps: Kinds of steps by name, the simple ones first, because Hypothesis shrinks towards them.
        tally: Counts of steps and other events, by name.
        count: Number of requests added so far.
    """

    settings: ClassVar[tuple[str, ...]]
    length: ClassVar[int]
    steps: ClassVar[Mapping[str, StepKind]]

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()
        self.count = 0

    def can(self, name: str) -> bool:
        """Return whether a step is possible now."""
        return name in self.steps and bool(self.steps[name].when(self))

    def state(self) -> str:
        """Return a line that says in which queues the requests are."""
        raise NotImplementedError

    def describe(self, step: Step) -> str:
        """Return a line with a step as a call, and the description of its kind."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in step.items() if name != "do")
        text = getattr(type(self), f"do_{step['do']}").__doc__ or ""
        return f"{step['do']}({arguments}): {text.partition(chr(10))[0]}"

    def do(self, step: Step) -> None:
        """Carry out a step; upstream's exceptions and broken invariants pass through."""
        self.tally[step["do"]] += 1
        arguments = {name: value for name, value in step.items() if name != "do"}
        getattr(self, f"do_{step['do']}")(**arguments)


@dataclass(frozen=True)
class Ending:
    """The failure or broken invariant that ends a story.

    Args:
        kind: `assertion` or `exception` for a failure of upstream's code; `invariant` for a failure of our checks.
        text: The statement that failed, the name of the exception, or the name of the invariant.
        detail: Further information; one line, except for an assertion whose message has several.
        path: Upstream's file as in its wheel; "" for an invariant.
        line: Line in the file.
        function: Function that contains the line.
        code: Code of the known issue; "" if there is none.
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
        """The values by which endings in different releases are compared: kind, text, path and function."""
        return (self.kind, self.text, self.path, self.function)

    def describe(self) -> str:
        """Return the ending with its location; one line, unless `detail` has several."""
        place = f"{self.path}:{self.line} in {self.function}: " if self.path else "broken invariant: "
        return place + self.text + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True)
class Story:
    """Settings, steps, the failure in which they end, and where the story comes from.

    Args:
        setup: The engine's settings.
        steps: The steps in order; `do` names the step, the other items are its arguments.
        finding: The failure in which the last step ends; None if there was none.
        versions: Versions of the installed packages when the story was found.
        seed: Seed of the search that found the story.
        cpu_s: CPU seconds from the search's start until the story was found and shrunk.
        engine: Name of vLLM's engine.
    """

    setup: dict[str, Any]
    steps: list[Step]
    finding: Ending | None = None
    versions: dict[str, str] = field(default_factory=dict)
    seed: int | None = None
    cpu_s: float | None = None
    engine: str = "v1"

    def to_json(self) -> dict[str, Any]:
        """Return the story as JSON data for a file."""
        return {"schema": SCHEMA} | asdict(self)

    @staticmethod
    def from_json(document: Any) -> Story:
        """Read the data of `to_json`.

        Raises:
            StoryError: The document is no story.
        """
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise StoryError(f"not a story: its schema is not {SCHEMA!r}")
        fields = {name: value for name, value in document.items() if name != "schema"}
        try:
            finding = Ending(**fields.pop("finding")) if fields.get("finding") else None
            story = Story(**(fields | {"finding": finding}))
        except TypeError as error:
            raise StoryError(f"not a story: {error}") from error
        if not isinstance(story.setup, dict) or not isinstance(story.steps, list):
            raise StoryError("not a story: expected a list of steps, and a table of settings")
        if not all(isinstance(step, dict) and "do" in step for step in story.steps):
            raise StoryError("not a story: each step needs its name, 'do'")
        return story


def load(path: Path) -> Story:
    """Read a story from a regular file of at most 16 MiB.

    Raises:
        StoryError: The file cannot be read, or contains no story.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise StoryError(f"{path} can't be read: expected a file of at most {_LARGEST >> 20} MiB")
        return Story.from_json(json.loads(read_bytes(path)))
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise StoryError(f"{path} can't be read: {error}") from error


def save(story: Story, path: Path) -> None:
    """Write a story to a file."""
    write_atomically(path, (json.dumps(story.to_json(), indent=1) + "\n").encode())


def find_ending(error: Exception) -> Ending | None:
    """Return the ending for a broken invariant or an exception of upstream's code; None for any other exception."""
    if isinstance(error, BrokenInvariantError):
        return Ending("invariant", error.name, error.detail, code=KNOWN.get(error.name, ""))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = judge.below_site_packages(frame.filename)
        if path and not path.startswith("hypothesis/"):
            line = frame.lineno or 0
            if isinstance(error, AssertionError):
                kind, text, detail = "assertion", judge.failed_statement(frame.filename, line), str(error)
            else:
                kind, text, detail = "exception", type(error).__name__, str(error).partition("\n")[0]
            return Ending(kind, text, detail, path, line, frame.name)
        if path or "/repro/" in frame.filename or "/hypothesis/" in frame.filename:
            break
    return None


def play(actions: EngineActions, steps: Sequence[Step]) -> tuple[list[str], list[Step], Ending | None]:
    """Play steps on a new engine, up to the first step that fails; skip steps that are not possible.

    An exception that `find_ending` does not recognise is raised.

    Returns:
        Numbered lines, the steps that were played, and the ending (None if no step failed).
    """
    lines: list[str] = []
    done: list[Step] = []
    for number, step in enumerate(steps, 1):
        if not actions.can(step["do"]):
            lines.append(f"{number}. ({step['do']}: can't be done here)")
            continue
        lines.append(f"{number}. {actions.describe(step)}")
        done.append(step)
        try:
            actions.do(step)
        except Exception as error:
            ending = find_ending(error)
            if ending is None:
                raise
            return [*lines, f"=> {ending.describe()}"], done, ending
        lines[-1] += f" [{actions.state()}]"
    return [*lines, "=> nothing is wrong"], done, None
