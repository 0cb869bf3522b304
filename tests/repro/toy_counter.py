"""An engine that fails when it is raised above two, and again, otherwise, when it is lowered below zero."""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from repro.base import BrokenInvariantError
from repro.search.machine import StoryMachine, possible


class CounterActions:
    """Its state is a number."""

    about = "at most two"

    def __init__(self, start=0):
        self.number = start
        self.tally = Counter()
        self.progress = ""

    def can(self, name):
        return name in {"raise", "lower", "break"}

    def say(self, step):
        return f"{step['do']} the number."

    def do(self, step):
        self.tally[step["do"]] += 1
        if step["do"] == "break":
            raise ZeroDivisionError
        self.number += step["by"] if step["do"] == "raise" else -1
        if self.number > 2:
            raise BrokenInvariantError("small", f"{self.number} is above two")
        if self.number < 0:
            raise BrokenInvariantError("positive", f"{self.number} is below zero")

    @staticmethod
    def rewrites(steps):
        return [[{"do": "raise", "by": 3}]] if len(steps) > 1 else []

    def state(self):
        return str(self.number)


class CounterMachine(StoryMachine):
    """Draws what is done to it."""

    engine = "toy"
    make = CounterActions

    @initialize(start=st.integers(0, 2))
    def begin(self, start):
        self.open(start=start)

    @possible("raise")
    @rule(by=st.integers(0, 1))
    def goes_up(self, by):
        self.act("raise", by=by)

    @possible("lower")
    @rule()
    def goes_down(self):
        self.act("lower")


class BrokenMachine(CounterMachine):
    """Its harness has a fault of its own."""

    @possible("break")
    @rule()
    def breaks(self):
        self.act("break")
