"""A toy engine with one number: raising it above two fails, and lowering it below zero fails differently."""

from repro.base import BrokenInvariantError
from repro.fuzz.stories import EngineActions, StepKind


class CounterActions(EngineActions):
    """Actions on an engine whose state is a number."""

    about = "at most two"
    settings = ("high",)
    length = 4
    steps = {  # noqa: RUF012
        "raise": StepKind(lambda _: True, by=(0, 3)),
        "lower": StepKind(lambda _: True),
    }

    def __init__(self, high=False):
        super().__init__()
        self.number = int(high)

    def queues(self):
        return {"number": [self.number] if self.number else []}

    def do_raise(self, by):
        """The number is raised."""
        self.number += by
        if self.number > 2:
            raise BrokenInvariantError("small", f"{self.number} is above two")

    def do_lower(self):
        """The number is lowered."""
        self.number -= 1
        if self.number < 0:
            raise BrokenInvariantError("positive", f"{self.number} is below zero")


class BrokenActions(CounterActions):
    """A repro whose harness has a bug."""

    steps = {"fault": StepKind(lambda _: True)}  # noqa: RUF012

    def do_fault(self):
        """The harness fails."""
        raise ZeroDivisionError
