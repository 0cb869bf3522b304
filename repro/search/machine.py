"""What the search machines share: each rule is a step of a story, and the notebook keeps the story that failed.

Needs Hypothesis, which no cell has: it is put beside one for a search. Playing a story that was found needs none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.stateful import RuleBasedStateMachine, precondition, run_state_machine_as_test

from repro.search.stories import Actions, Ending, Step, Story, found


@dataclass
class Notebook:
    """What a search knows.

    Args:
        known: keys of the findings it no longer looks for.
        pinned: key of the one it found; another one met after it doesn't count in this round.
        story: the last that ended with it.
        examples: how many were played.
        steps: how many steps these had.
        tally: how often what happened.
    """

    known: set[tuple[str, ...]] = field(default_factory=set)
    pinned: tuple[str, ...] | None = None
    story: Story | None = None
    examples: int = 0
    steps: int = 0
    tally: Counter[str] = field(default_factory=Counter)

    def turn_the_page(self) -> None:
        """Begins a round."""
        self.pinned = self.story = None

    def wants(self, finding: Ending) -> bool:
        """Whether the search looks for it; the first that it meets is the one."""
        if finding.key in self.known:
            return False
        self.pinned = self.pinned or finding.key
        return finding.key == self.pinned


class StoryMachine(RuleBasedStateMachine):
    """A machine whose rules are steps. A subclass says of which engine, and draws the settings and the steps."""

    engine: ClassVar[str]
    make: ClassVar[type[Actions]]
    notebook: ClassVar[Notebook]

    def __init__(self) -> None:
        super().__init__()
        self.actions: Actions | None = None
        self.setup: dict[str, Any] = {}
        self.steps: list[Step] = []
        self.over = False

    def open(self, **setup: Any) -> None:
        """Starts the story with a fresh engine."""
        self.setup = setup
        self.actions = self.make(**setup)
        self.notebook.examples += 1

    def act(self, name: str, **arguments: Any) -> None:
        """Does one step. An exception that is not looked for ends the story quietly, any other passes through."""
        if self.over or self.actions is None:
            return
        step = {"do": name, **arguments}
        self.steps.append(step)
        self.notebook.steps += 1
        try:
            self.actions.do(step)
        except Exception as error:
            self.over = True
            finding = found(error)
            if finding is not None and not self.notebook.wants(finding):
                return
            if finding is not None:
                self.notebook.story = Story(self.engine, self.setup, list(self.steps), finding)
            raise

    def teardown(self) -> None:
        """Adds up what happened."""
        if self.actions is not None:
            self.notebook.tally += self.actions.tally


def possible(name: str) -> Callable[[Any], Any]:
    """Returns the precondition of a rule: its step makes sense now. A story that is over takes any, and does none."""
    return precondition(lambda machine: machine.over or machine.actions.can(name))


def search(machine: type[StoryMachine], notebook: Notebook, *, seed: int, examples: int, length: int) -> None:
    """Plays stories until one ends with something new, or until all are played.

    Making it shorter is left to `stories.shorten`, which knows steps where Hypothesis knows choices: playing a story
    means making a scheduler, and it needs a fraction of the plays.

    Args:
        machine: which draws them.
        notebook: where the story goes.
        seed: the same one gives the same search. No example database: it starts from nothing.
        examples: how many stories.
        length: most steps of one.
    """
    notebook.turn_the_page()
    told = hypothesis.seed(seed)(type(machine.__name__, (machine,), {"notebook": notebook}))
    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=length,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        print_blob=False,
    )
    try:
        run_state_machine_as_test(told, settings=settings)
    except Exception as error:
        if notebook.story is None or found(error) is None:
            raise
