"""Async: the engine samples ahead, in a process of its own, while the trainer trains.

What is asked for when follows from counts alone, never from the clock, so that a run can be repeated and resumed
exactly. Whenever the engine has nothing left to do, it is given the newest policy version and as many rollouts as
will not be too old when their turn comes: the one behind k others is trained on k updates later. With
`max_staleness = 0` that is none before the update is made, and every number is that of colocate.

With `partial_tokens` the engine is given new weights once a step, whatever is unfinished: a completion that is not
due yet gets at most so many tokens at a time, and the rest under later versions, each token marked with its own.
"""

from __future__ import annotations

from collections import deque
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from grpo_core.modes import shared
from grpo_core.rollout.child.process import ProcessEngine
from grpo_core.trainer import InFlight

if TYPE_CHECKING:
    from grpo_core.publish import Publisher
    from grpo_core.trainer import Trainer
    from grpo_core.types import Completion, Request


def run(trainer: Trainer) -> None:
    """Keep the engine busy, train on what has come; and again."""
    options = trainer.config.rollout
    own = None
    if trainer.world.first:
        own = ProcessEngine(trainer.engine_spec(), timeout_s=options.timeout_s, sync=options.sync)
    with closing(shared(trainer, own)) as engine:
        ahead = _Ahead(trainer, engine, trainer.publisher(engine))
        if trainer.flight:  # what was being sampled when the run was killed
            ahead.ask(trainer.flight)
        for _ in trainer.steps():
            ahead.fill()
            while not trainer.ready():
                with trainer.timed("rollout"):  # the part of it that the trainer has to wait for
                    completions = ahead.next()
                trainer.take(trainer.flight.pop(0).rollout, completions)
                ahead.fill()
            trainer.learn()


class _Ahead:
    """What the engine is asked for, in order."""

    def __init__(self, trainer: Trainer, engine: ProcessEngine, sync: Publisher) -> None:
        self._trainer, self._engine, self._sync = trainer, engine, sync
        self._partial = trainer.config.rollout.partial_tokens
        self._calls: deque[list[tuple[InFlight, list[Request]]]] = deque()

    def fill(self) -> None:
        """If the engine is idle: gives it the policy as it is now, and what it may sample with it."""
        trainer, flight = self._trainer, self._trainer.flight
        if self._calls:
            return
        # Updates until the next new rollout is trained on: those in flight go before it.
        before = int(trainer.ready())
        room = trainer.config.train.steps - trainer.step - before
        fresh = 0
        while len(flight) + fresh < room and self._may_start(before + len(flight) + fresh):
            fresh += 1
        if not fresh and not flight:
            return
        if self._engine.policy_version != trainer.version:
            trainer.publish(self._sync)
        trainer.evaluate(self._engine)
        new = [InFlight(trainer.next_rollout()) for _ in range(fresh)]
        self.ask([*flight, *new] if self._partial else new)
        flight += new

    def ask(self, rollouts: list[InFlight]) -> None:
        """Starts sampling: rollout by rollout, or in partial mode a slice of all, the first to its end."""
        asked = []
        for place, wanted in enumerate(rollouts):
            budget = self._partial if place else 0
            requests = [_rest(request, wanted, budget) for request in wanted.rollout.requests]
            asked.append((wanted, [request for request in requests if request is not None]))
        for call in [asked] if self._partial else [[one] for one in asked]:
            together = [request for _, part in call for request in part]
            self._engine.start_generate(together, self._trainer.sampling)
            self._calls.append(call)

    def next(self) -> list[Completion]:
        """Waits for the oldest call; the completions of the oldest rollout, which are whole by then."""
        answers = iter(self._engine.finish_generate())
        for wanted, requests in self._calls.popleft():
            for request in requests:
                wanted.begun[request.id] = _joined(wanted.begun.get(request.id), next(answers))
        oldest = self._trainer.flight[0]
        return [oldest.begun[request.id] for request in oldest.rollout.requests]

    def _may_start(self, updates_before: int) -> bool:
        """Admission: a token sampled now must not be too old when it is trained on."""
        options = self._trainer.config
        return updates_before * options.train.iterations <= options.rollout.max_staleness


def _rest(request: Request, wanted: InFlight, budget: int) -> Request | None:
    """What is still to be sampled of a completion; None: nothing."""
    begun = wanted.begun.get(request.id)
    if begun is None:
        return replace(request, budget=budget)
    return replace(request, budget=budget, prefix=begun.ids) if begun.finish_reason == "abort" else None


def _joined(begun: Completion | None, more: Completion) -> Completion:
    """A completion and what was sampled behind it."""
    if begun is None:
        return more
    return replace(
        more,
        ids=begun.ids + more.ids,
        logprobs=begun.logprobs + more.logprobs,
        versions=begun.versions + more.versions,
    )
