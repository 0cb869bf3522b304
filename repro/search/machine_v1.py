"""Looks for stories in which the V1 scheduler fails or breaks an invariant, under lawful use alone."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from repro.drivers.schedulers.v1 import PAUSES
from repro.search.actions_v1 import LIMIT, V1Actions
from repro.search.machine import StoryMachine, possible
from repro.search.stories import Actions


class V1Machine(StoryMachine):
    """The real V1 scheduler, under lawful use."""

    engine = "v1"
    make: ClassVar[type[Actions]] = V1Actions

    @initialize(
        asynchronous=st.booleans(),
        prefix_caching=st.booleans(),
        chunked=st.booleans(),
        priority=st.booleans(),
        tiny_cache=st.booleans(),
    )
    def settings_of_the_engine(
        self, asynchronous: bool, prefix_caching: bool, chunked: bool, priority: bool, tiny_cache: bool
    ) -> None:
        """See `actions_v1.small`."""
        self.open(
            asynchronous=asynchronous,
            prefix_caching=prefix_caching,
            chunked=chunked,
            priority=priority,
            tiny_cache=tiny_cache,
        )

    @possible("add")
    @rule(
        prompt=st.integers(1, LIMIT - 1),
        max_tokens=st.integers(1, LIMIT),
        min_tokens=st.integers(0, 6),
        stop_at=st.integers(0, 6),
        family=st.integers(0, 1),
        priority=st.integers(0, 2),
    )
    def request_arrives(self, max_tokens: int, min_tokens: int, **other: int) -> None:
        """Within the limits that the engine sets a request."""
        self.act("add", max_tokens=max_tokens, min_tokens=min(min_tokens, max_tokens), **other)

    @possible("schedule")
    @rule()
    def step_is_scheduled(self) -> None:
        """The first half of a step."""
        self.act("schedule")

    @possible("update")
    @rule()
    def output_comes_back(self) -> None:
        """The second half."""
        self.act("update")

    @possible("go")
    @rule(steps=st.integers(1, 40))
    def engine_goes_on(self, steps: int) -> None:
        """Several halves, as its loop takes them."""
        self.act("go", steps=steps)

    @possible("abort")
    @rule(which=st.integers(0, 3))
    def request_is_aborted(self, which: int) -> None:
        """One of the unfinished, at any time."""
        self.act("abort", which=which)

    @possible("reset")
    @rule(running=st.booleans())
    def prefix_cache_is_reset(self, running: bool) -> None:
        """As after new weights."""
        self.act("reset", running=running)

    @possible("pause")
    @rule(mode=st.sampled_from(PAUSES))
    def engine_is_paused(self, mode: str) -> None:
        """In each of the three ways."""
        self.act("pause", mode=mode)

    @possible("resume")
    @rule()
    def engine_is_resumed(self) -> None:
        """Takes back the pause."""
        self.act("resume")

    @possible("drain")
    @rule()
    def engine_is_drained(self) -> None:
        """Stepped until it is empty, and looked at."""
        self.act("drain")
