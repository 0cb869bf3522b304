"""Looks for stories in which the V0 scheduler fails, knowing nothing of any failure.

It draws settings, requests of all lengths, and what callers do.
"""

from __future__ import annotations

from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from repro.search.actions_v0 import LIMIT, V0Actions
from repro.search.machine import StoryMachine, possible
from repro.search.stories import Actions


class V0Machine(StoryMachine):
    """The real V0 scheduler, under lawful use and misuse."""

    engine = "v0"
    make: ClassVar[type[Actions]] = V0Actions

    @initialize(chunked=st.booleans(), async_output=st.booleans(), tiny_cache=st.booleans())
    def settings_of_the_engine(self, chunked: bool, async_output: bool, tiny_cache: bool) -> None:
        """See `actions_v0.small`."""
        self.open(chunked=chunked, async_output=async_output, tiny_cache=tiny_cache)

    @possible("add")
    @rule(
        prompt=st.integers(1, LIMIT + 4),
        max_tokens=st.integers(1, 8),
        min_tokens=st.integers(0, 8),
        stop=st.booleans(),
    )
    def request_arrives(self, prompt: int, max_tokens: int, min_tokens: int, stop: bool) -> None:
        """Also one whose prompt is over the limit; the engine may refuse it."""
        self.act(
            "add", prompt=prompt, max_tokens=max_tokens, min_tokens=min(min_tokens, max_tokens), stop=stop
        )

    @possible("step")
    @rule()
    def engine_steps(self) -> None:
        """A whole step."""
        self.act("step")

    @possible("abort")
    @rule(which=st.integers(0, 3))
    def request_is_aborted(self, which: int) -> None:
        """One of those in flight."""
        self.act("abort", which=which)

    @possible("lose")
    @rule()
    def step_is_lost(self) -> None:
        """Its forward pass fails, and the caller goes on."""
        self.act("lose")

    @possible("begin")
    @rule()
    def step_begins(self) -> None:
        """One of two callers, up to its forward pass."""
        self.act("begin")

    @possible("finish")
    @rule()
    def step_ends(self) -> None:
        """The same caller, from its forward pass on."""
        self.act("finish")

    @possible("drain")
    @rule()
    def engine_is_drained(self) -> None:
        """Stepped until it is empty, and looked at."""
        self.act("drain")
