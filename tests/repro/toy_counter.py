"""Provide a toy engine with one number that fails above two, and fails differently below zero."""

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
