"""An engine that fails when it is raised above two, and again, otherwise, when it is lowered below zero."""

from repro.base import BrokenInvariantError
from repro.fuzz.stories import EngineActions


class CounterActions(EngineActions):
    """Its state is a number."""

    about = "at most two"
    settings = ("high",)
    draws = {"raise": {"by": (0, 3)}, "lower": {}}  # noqa: RUF012
    sentences = {name: lambda _, step: f"{step['do']} the number." for name in ("raise", "lower", "fault")}  # noqa: RUF012

    def __init__(self, high=False):
        super().__init__()
        self.number = int(high)

    def can(self, name):
        return name in {"raise", "lower", "fault"}

    def state(self):
        return str(self.number)

    def _fault(self):
        raise ZeroDivisionError

    def _raise(self, by):
        self.number += by
        if self.number > 2:
            raise BrokenInvariantError("small", f"{self.number} is above two")

    def _lower(self):
        self.number -= 1
        if self.number < 0:
            raise BrokenInvariantError("positive", f"{self.number} is below zero")


class BrokenActions(CounterActions):
    """Its harness has a fault of its own."""

    draws = {"fault": {}}  # noqa: RUF012
