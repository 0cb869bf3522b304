"""What the actions of both engines share: a step is a name with arguments, told in a sentence, counted, and done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from repro.search.stories import Step


class EngineActions:
    """One engine, what was asked of it, and what came back.

    A subclass has a method `_<name>` for each step, and a sentence for it.
    """

    about: ClassVar[str]
    sentences: ClassVar[Mapping[str, Callable[[Any, Step], str]]]

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()
        self.progress = ""

    def say(self, step: Step) -> str:
        """Tells in a sentence what the step is about to do."""
        return type(self).sentences[step["do"]](self, step)

    def do(self, step: Step) -> None:
        """Does it. Upstream's exceptions and broken invariants pass through."""
        self.tally[step["do"]] += 1
        self.progress = ""
        arguments = {name: value for name, value in step.items() if name != "do"}
        getattr(self, f"_{step['do']}")(**arguments)

    @staticmethod
    def target(names: list[str], which: int) -> str:
        """Returns one of the requests, whichever number was drawn."""
        return names[which % len(names)]
