"""What the async mode has the engine sample ahead of the trainer.

What is asked for when follows from counts alone, never from the clock, so that a run can be repeated and resumed
exactly. Whenever the engine has nothing left to do, it is given the newest policy version and as many rollouts as
will not be too old when their turn comes: the one behind k others is trained on k updates later. With
`max_staleness = 0` that is none before the update is made, and every number is that of colocate.

With `partial_tokens` the engine is given new weights once a step, whatever is unfinished: a completion that is not
due yet gets at most so many tokens at a time, and the rest under later versions, each token marked with its own.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from grpo_core.learn.update import put_back
from grpo_core.machine.checkpoint import State, completion_from
from grpo_core.tasks.dataset import rollout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from grpo_core.learn.policy import Policy
    from grpo_core.rollout.subprocess_engine import ProcessEngine
    from grpo_core.trainer import Trainer
    from grpo_core.types import Completion, Request, Rollout


@dataclass
class InFlight:
    """A rollout that was asked for and is not trained on yet.

    Attributes:
        rollout: What was asked for.
        begun: The completions so far, by request id, where a weight update came in between.
    """

    rollout: Rollout
    begun: dict[str, Completion] = field(default_factory=dict)


class Ahead:
    """What the engine is asked for, in order; a checkpoint keeps it."""

    def __init__(self, trainer: Trainer, engine: ProcessEngine) -> None:
        """Goes on with what was being sampled when the run was killed, if it was."""
        self._trainer, self._engine, self._sync = trainer, engine, trainer.publisher(engine)
        options = trainer.config
        self._partial = options.rollout.partial_tokens
        self._flight: list[InFlight] = []
        self._calls: deque[list[tuple[InFlight, list[Request]]]] = deque()
        # The weights that rollouts in flight are sampled with, while they are not the policy's own any more.
        self._held: dict[str, torch.Tensor] = {}
        self._holds = bool(options.rollout.max_staleness and options.checkpoint.every)
        trainer.under_way = self._under_way
        if trainer.resumed is not None and trainer.resumed.flight:
            self._resume(trainer.resumed)
            trainer.resumed = None

    def fill(self) -> None:
        """If the engine is idle: gives it the policy as it is now, and what it may sample with it."""
        trainer, flight = self._trainer, self._flight
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
            if self._holds:
                self._held = {name: value.clone() for name, value in trainer.policy.state().items()}
        trainer.evaluate(self._engine)
        new = [InFlight(trainer.next_rollout()) for _ in range(fresh)]
        self._ask([*flight, *new] if self._partial else new)
        flight += new

    def next(self) -> tuple[Rollout, list[Completion]]:
        """Waits for the oldest call; the oldest rollout and its completions, which are whole by then."""
        answers = iter(self._engine.finish_generate())
        for wanted, requests in self._calls.popleft():
            for request in requests:
                wanted.begun[request.id] = _joined(wanted.begun.get(request.id), next(answers))
        oldest = self._flight.pop(0)
        return oldest.rollout, [oldest.begun[request.id] for request in oldest.rollout.requests]

    def _ask(self, rollouts: list[InFlight]) -> None:
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

    def _may_start(self, updates_before: int) -> bool:
        """Admission: a token sampled now must not be too old when it is trained on."""
        options = self._trainer.config
        return updates_before * options.train.updates <= options.rollout.max_staleness

    def _under_way(self) -> State:
        if not self._flight:
            return State()
        assert self._held
        flight = [(one.rollout.number, [asdict(c) for c in one.begun.values()]) for one in self._flight]
        version = self._engine.policy_version
        return State(flight=flight, flight_version=version, tensors={"sampling": self._held})

    def _resume(self, state: State) -> None:
        """Gives the engine the weights that it had, and asks for what it had been asked for."""
        for number, begun in state.flight:
            completions = [completion_from(entry) for entry in begun]
            again = rollout(self._trainer.prompts, number, self._trainer.config)
            self._flight.append(InFlight(again, {c.request_id: c for c in completions}))
        self._held = state.tensors["sampling"]
        self._sync.last = None  # the probe kept is of these very weights: nothing has moved since
        with having(self._trainer.policy, self._held):
            self._sync.publish(state.flight_version)
        self._ask(self._flight)


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


@contextmanager
def having(policy: Policy, state: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """The policy in an older version, for as long as that is needed."""
    now = {name: tensor.clone() for name, tensor in policy.state().items()}
    put_back(policy, state)
    try:
        yield
    finally:
        put_back(policy, now)
