"""The async mode's queue: rollouts that the engine samples ahead of the trainer.

Requests depend on counts alone, never on the clock, so a run can be repeated and resumed exactly. An idle engine
receives the newest policy version and as many rollouts as will not be too old when they are trained on: a rollout after
k others is trained on k updates later. With `max_staleness = 0` that is none before the update is made, and every
number is that of colocate.

With `partial_tokens` the engine receives new weights once per step, whatever is unfinished. A completion that is not
due yet gets at most so many tokens at a time, and the rest under later versions; each token has its own version.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

import torch

from grpo_core.learn.policy import Policy
from grpo_core.machine.checkpoint import State, completion_from
from grpo_core.rollout.subprocess_engine import ProcessEngine
from grpo_core.tasks.dataset import rollout
from grpo_core.trainer import Trainer
from grpo_core.types import Completion, Request, Rollout


@dataclass
class InFlight:
    """A rollout that was requested and is not trained on yet.

    Attributes:
        rollout: Prompts and requests.
        completions: The completions so far by request id; partial ones where a weight update came in between.
    """

    rollout: Rollout
    completions: dict[str, Completion] = field(default_factory=dict)


class Ahead:
    """The engine's queue, in order; a checkpoint saves it."""

    def __init__(self, trainer: Trainer, engine: ProcessEngine) -> None:
        """Continue with the rollouts that were being sampled when the run was killed, if any."""
        self._trainer, self._engine, self._sync = trainer, engine, trainer.publisher(engine)
        options = trainer.config
        self._partial = options.rollout.partial_tokens
        self._flight: list[InFlight] = []
        self._calls: deque[list[tuple[InFlight, list[Request]]]] = deque()
        # The weights that rollouts in flight are sampled with, once the policy has newer ones.
        self._sampling_weights: dict[str, torch.Tensor] = {}
        self._saves_weights = bool(options.rollout.max_staleness and options.checkpoint.every)
        trainer.in_flight = self._state
        if trainer.resumed is not None and trainer.resumed.flight:
            self._resume(trainer.resumed)
            trainer.resumed = None

    def fill(self) -> None:
        """Send the current policy and new requests to the engine, if it is idle."""
        trainer, flight = self._trainer, self._flight
        if self._calls:
            return
        # Updates until the next new rollout is trained on: those in flight come before it.
        before = int(trainer.ready())
        room = trainer.config.train.steps - trainer.step - before
        fresh = 0
        while len(flight) + fresh < room and self._may_start(before + len(flight) + fresh):
            fresh += 1
        if not fresh and not flight:
            return
        if self._engine.policy_version != trainer.version:
            trainer.publish(self._sync)
            if self._saves_weights:
                state = trainer.policy.state()
                self._sampling_weights = {name: value.clone() for name, value in state.items()}
        trainer.evaluate(self._engine)
        new = [InFlight(trainer.next_rollout()) for _ in range(fresh)]
        self._request([*flight, *new] if self._partial else new)
        flight += new

    def next(self) -> tuple[Rollout, list[Completion]]:
        """Wait for the oldest call; return the oldest rollout and its completions, which are finished by then."""
        answers = iter(self._engine.finish_generate())
        for waiting, requests in self._calls.popleft():
            for request in requests:
                earlier = waiting.completions.get(request.id)
                waiting.completions[request.id] = _join(earlier, next(answers))
        oldest = self._flight.pop(0)
        return oldest.rollout, [oldest.completions[request.id] for request in oldest.rollout.requests]

    def _request(self, rollouts: list[InFlight]) -> None:
        """Start sampling, one call per rollout; in partial mode one call with a slice of all, the first to its end."""
        parts = []
        for place, waiting in enumerate(rollouts):
            budget = self._partial if place else 0
            requests = [_remaining(request, waiting, budget) for request in waiting.rollout.requests]
            parts.append((waiting, [request for request in requests if request is not None]))
        for call in [parts] if self._partial else [[part] for part in parts]:
            together = [request for _, part in call for request in part]
            self._engine.start_generate(together, self._trainer.sampling)
            self._calls.append(call)

    def _may_start(self, updates_before: int) -> bool:
        """Return whether a token sampled now is young enough after so many updates."""
        options = self._trainer.config
        return updates_before * options.train.updates <= options.rollout.max_staleness

    def _state(self) -> State:
        if not self._flight:
            return State()
        assert self._sampling_weights
        flight = [
            (waiting.rollout.number, [asdict(completion) for completion in waiting.completions.values()])
            for waiting in self._flight
        ]
        version = self._engine.policy_version
        return State(flight=flight, flight_version=version, tensors={"sampling": self._sampling_weights})

    def _resume(self, state: State) -> None:
        """Send the saved weights to the engine, and repeat the requests."""
        for number, entries in state.flight:
            completions = [completion_from(entry) for entry in entries]
            again = rollout(self._trainer.prompts, number, self._trainer.config)
            self._flight.append(InFlight(again, {c.request_id: c for c in completions}))
        self._sampling_weights = state.tensors["sampling"]
        self._sync.last = None  # the saved probe is of the same weights: it would show no change
        with temporary_state(self._trainer.policy, self._sampling_weights):
            self._sync.publish(state.flight_version)
        self._request(self._flight)


def _remaining(request: Request, waiting: InFlight, budget: int) -> Request | None:
    """Return the request for the rest of a completion; None if it is finished."""
    earlier = waiting.completions.get(request.id)
    if earlier is None:
        return replace(request, budget=budget)
    return replace(request, budget=budget, prefix=earlier.ids) if earlier.finish_reason == "abort" else None


def _join(earlier: Completion | None, more: Completion) -> Completion:
    """Append to a completion what was sampled after it."""
    if earlier is None:
        return more
    return replace(
        more,
        ids=earlier.ids + more.ids,
        logprobs=earlier.logprobs + more.logprobs,
        versions=earlier.versions + more.versions,
    )


@contextmanager
def temporary_state(policy: Policy, state: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Give the policy older parameters within the block."""
    now = {name: tensor.clone() for name, tensor in policy.state().items()}
    policy.load_state(state)
    try:
        yield
    finally:
        policy.load_state(now)
